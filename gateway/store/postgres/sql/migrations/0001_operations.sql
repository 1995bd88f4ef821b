-- What PostgreSQL has besides the tables of distributed SQL, which come first: tokens are drawn in one place, responses are
-- dropped by the day, members vouch for a promoted server, and rows that are changed often have room for it on their pages.

CREATE SEQUENCE idempotency_gateway.token AS bigint NO CYCLE;

-- Between claim and completion no indexed column changes, so that the update stays on its page and touches no index
-- (heap-only). Therefore no index contains `state` or a time that a completion sets. Instead, there are columns that a completion
-- normally does not change, and half of a page is left free for it:
--   expected_us   when a new claim expects to be due once it is completed, by the window of the last completion of the same
--                 operation name.
--   check_us      when the clock may next change the record; of a completed one up to 5 s later, as it was expected. Null for a
--                 claim that expects nothing: lapsed claims are found by walking the tokens from where the last walk ended
--                 (`epoch.passed_token`).
--   watched       what operators look at, and claims that were renewed, which the walk passes by.
DROP INDEX idempotency_gateway.operation_due, idempotency_gateway.operation_stopped, idempotency_gateway.operation_end;
CREATE UNIQUE INDEX operation_token ON idempotency_gateway.operation (token);
CREATE INDEX operation_check ON idempotency_gateway.operation (check_us) WHERE check_us IS NOT NULL;
CREATE INDEX operation_watched ON idempotency_gateway.operation (watched, id) WHERE watched IS NOT NULL;
ALTER TABLE idempotency_gateway.operation SET (
    fillfactor = 45,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_insert_scale_factor = 0.1,
    autovacuum_analyze_scale_factor = 0.05
);
-- Tombstones: the row of a completed operation moves here when its response is over, and takes a sixth of the room. No operation
-- has a row in both; what reads `operation` reads them together.
CREATE TABLE idempotency_gateway.narrow (PRIMARY KEY (id)) INHERITS (idempotency_gateway.operation) WITH (
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_insert_scale_factor = 0.1,
    autovacuum_analyze_scale_factor = 0.05
);
-- By the minute in which they end: equal entries take the room of one.
CREATE INDEX narrow_end ON idempotency_gateway.narrow ((remember_until_us / 60000000));
CREATE INDEX narrow_sealed ON idempotency_gateway.narrow (sealed_by) WHERE sealed_by IS NOT NULL;
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

-- The responses, found by token and by the day (since 1970, UTC) from which a whole partition is expired. They are never
-- updated but for another key, and only a purge deletes single ones: a partition is dropped as a whole.
DROP TABLE idempotency_gateway.response;
CREATE TABLE idempotency_gateway.response (
    token    bigint  NOT NULL,
    drop_day integer NOT NULL,
    body     bytea   NOT NULL,
    PRIMARY KEY (token, drop_day)
) PARTITION BY LIST (drop_day);

-- The longer the window, the coarser the day, so that a few dozen partitions serve every window.
CREATE FUNCTION idempotency_gateway.drop_day(now_us bigint, replay_us bigint) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT (((now_us + replay_us) / 86400000000 + coarseness) / coarseness * coarseness)::integer
    FROM (SELECT CASE
        WHEN replay_us <= 10 * 86400000000 THEN 1
        WHEN replay_us <= 70 * 86400000000 THEN 7
        WHEN replay_us <= 728 * 86400000000 THEN 28
        WHEN replay_us <= 3640 * 86400000000 THEN 364
        ELSE 36400
    END AS coarseness) steps
$$;

-- Make or drop the partition of one day, for the role that runs a gateway: only the table's owner may do that. Attaching
-- does not block traffic. A table that was detached is attached again.
CREATE FUNCTION idempotency_gateway.add_partition(drop_day integer) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    day_table text := format('idempotency_gateway.response_%s', drop_day);
BEGIN
    IF to_regclass(day_table) IS NULL THEN
        EXECUTE format('CREATE TABLE %s (LIKE idempotency_gateway.response INCLUDING ALL)', day_table);
    END IF;
    EXECUTE format('ALTER TABLE idempotency_gateway.response ATTACH PARTITION %s FOR VALUES IN (%s)', day_table, drop_day);
END
$$;

CREATE FUNCTION idempotency_gateway.drop_partition(drop_day integer) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    EXECUTE format('DROP TABLE idempotency_gateway.response_%s', drop_day);
END
$$;

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
    -- The longest replay window of its responses: partitions are made for all of them.
    ADD COLUMN replay_us bigint NOT NULL DEFAULT 0,
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

-- Where the walk for lapsed claims ended: no claim with this token or a lower one can lapse unseen.
ALTER TABLE idempotency_gateway.epoch ADD COLUMN passed_token bigint NOT NULL DEFAULT 0;

-- Every claim.
CREATE VIEW idempotency_gateway.claimed AS
SELECT o.id, o.state, o.route, o.due_us, o.carried_us, o.lease_until_us
FROM ONLY idempotency_gateway.operation AS o
WHERE o.token > (SELECT e.passed_token FROM idempotency_gateway.epoch AS e) AND o.state = 'claimed' AND o.watched IS NULL
UNION ALL
SELECT o.id, o.state, o.route, o.due_us, o.carried_us, o.lease_until_us
FROM ONLY idempotency_gateway.operation AS o
WHERE o.watched = 'renewed';
