-- What PostgreSQL has besides the tables of distributed SQL, which come first: tokens are drawn in one place, members vouch for a
-- promoted server, and rows that are changed often have room for it on their pages.

CREATE SEQUENCE idempotency_gateway.token AS bigint NO CYCLE;

ALTER TABLE idempotency_gateway.operation SET (
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_insert_scale_factor = 0.1,
    autovacuum_analyze_scale_factor = 0.05
);
ALTER TABLE idempotency_gateway.delivery SET (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_insert_scale_factor = 0.1,
    autovacuum_analyze_scale_factor = 0.05
);
ALTER TABLE idempotency_gateway.request SET (
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 1000,
    toast.autovacuum_vacuum_scale_factor = 0.01,
    toast.autovacuum_vacuum_threshold = 1000
);
-- It is encrypted, and does not get smaller.
ALTER TABLE idempotency_gateway.request ALTER COLUMN sealed SET STORAGE EXTERNAL;
ALTER TABLE idempotency_gateway.content SET (
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_insert_scale_factor = 0.1,
    autovacuum_analyze_scale_factor = 0.05
);
ALTER TABLE idempotency_gateway.event SET (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_insert_scale_factor = 0.1,
    autovacuum_analyze_scale_factor = 0.05
);
ALTER TABLE idempotency_gateway.recovery SET (fillfactor = 70);
ALTER TABLE idempotency_gateway.turn SET (fillfactor = 20);
-- Raising one changes no indexed column, and stays on its page.
ALTER TABLE idempotency_gateway.witness SET (fillfactor = 20);

-- What the server says of itself, as far as the owner of the schema may ask; null where it may not, as on some managed
-- services. Whoever runs a gateway sees the same. The number of the system, which copies of its files share; the timeline that
-- it is on; whether a standby follows, or may; and since when its settings are as they are.
CREATE FUNCTION idempotency_gateway.server_system() RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT system_identifier FROM pg_control_system());
EXCEPTION WHEN insufficient_privilege OR undefined_function OR feature_not_supported THEN
    RETURN NULL;
END
$$;

CREATE FUNCTION idempotency_gateway.server_timeline() RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN left(pg_walfile_name(pg_current_wal_lsn()), 8);
EXCEPTION WHEN insufficient_privilege OR undefined_function OR feature_not_supported THEN
    RETURN NULL;
END
$$;

CREATE FUNCTION idempotency_gateway.may_have_standby() RETURNS boolean
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN EXISTS (SELECT FROM pg_stat_replication);
EXCEPTION WHEN insufficient_privilege OR undefined_table OR undefined_function OR feature_not_supported THEN
    RETURN NULL;
END
$$;

CREATE FUNCTION idempotency_gateway.settings_loaded_at() RETURNS timestamptz
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN pg_conf_load_time();
EXCEPTION WHEN insufficient_privilege OR undefined_function OR feature_not_supported THEN
    RETURN NULL;
END
$$;

REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA idempotency_gateway FROM PUBLIC;

-- One that has a `beat` may grant. A promoted server is believed once each of them has vouched for it, by the identity of the
-- promoted memory; those that ended are vouched for by the notes of their host, if it was not booted again since.
ALTER TABLE idempotency_gateway.gateway
    ADD COLUMN beat bigint,
    ADD COLUMN notes bytea,
    ADD COLUMN boot text NOT NULL DEFAULT '',
    ADD COLUMN vouched_for text NOT NULL DEFAULT '';
ALTER TABLE idempotency_gateway.gateway SET (fillfactor = 70);

-- The `identity` is another one after each promotion that was found to have lost nothing.
ALTER TABLE idempotency_gateway.epoch
    -- Of the server that the schema was made on; empty where that was not said, and then it is not asked any more.
    ADD COLUMN system text NOT NULL DEFAULT '',
    -- On which the memory was accepted last; on a later one, the server was promoted since. Empty like the system.
    ADD COLUMN timeline text NOT NULL DEFAULT '';
UPDATE idempotency_gateway.epoch SET
    system = coalesce(idempotency_gateway.server_system(), ''),
    timeline = coalesce(idempotency_gateway.server_timeline(), '');
