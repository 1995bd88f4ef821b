CREATE SCHEMA idempotency_gateway;
CREATE FUNCTION idempotency_gateway.add_partition(drop_day integer) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
    day_table text := format('idempotency_gateway.response_%s', drop_day);
BEGIN
    IF to_regclass(day_table) IS NULL THEN
        EXECUTE format('CREATE TABLE %s (LIKE idempotency_gateway.response INCLUDING ALL)', day_table);
    END IF;
    EXECUTE format('ALTER TABLE idempotency_gateway.response ATTACH PARTITION %s FOR VALUES IN (%s)', day_table, drop_day);
END
$$;
CREATE FUNCTION idempotency_gateway.drop_day(now_us bigint, replay_us bigint) RETURNS integer
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
    SELECT (((now_us + replay_us) / 86400000000 + coarseness) / coarseness * coarseness)::integer
    FROM (SELECT CASE
        WHEN replay_us <= 10 * 86400000000 THEN 1
        WHEN replay_us <= 70 * 86400000000 THEN 7
        WHEN replay_us <= 728 * 86400000000 THEN 28
        WHEN replay_us <= 3640 * 86400000000 THEN 364
        ELSE 36400
    END AS coarseness) steps
$$;
CREATE FUNCTION idempotency_gateway.drop_partition(drop_day integer) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    EXECUTE format('DROP TABLE idempotency_gateway.response_%s', drop_day);
END
$$;
CREATE FUNCTION idempotency_gateway.may_have_standby() RETURNS boolean
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    RETURN EXISTS (SELECT FROM pg_stat_replication);
EXCEPTION WHEN insufficient_privilege OR undefined_table OR undefined_function OR feature_not_supported THEN
    RETURN NULL;
END
$$;
CREATE FUNCTION idempotency_gateway.server_system() RETURNS text
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    RETURN (SELECT system_identifier FROM pg_control_system());
EXCEPTION WHEN insufficient_privilege OR undefined_function OR feature_not_supported THEN
    RETURN NULL;
END
$$;
CREATE FUNCTION idempotency_gateway.server_timeline() RETURNS text
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    RETURN left(pg_walfile_name(pg_current_wal_lsn()), 8);
EXCEPTION WHEN insufficient_privilege OR undefined_function OR feature_not_supported THEN
    RETURN NULL;
END
$$;
CREATE FUNCTION idempotency_gateway.settings_loaded_at() RETURNS timestamp with time zone
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    RETURN pg_conf_load_time();
EXCEPTION WHEN insufficient_privilege OR undefined_function OR feature_not_supported THEN
    RETURN NULL;
END
$$;
CREATE TABLE idempotency_gateway.audit (
    operation_id uuid NOT NULL,
    entry bigint NOT NULL,
    at_us bigint NOT NULL,
    keep_until_us bigint NOT NULL,
    token bigint NOT NULL,
    event text NOT NULL,
    who text NOT NULL,
    why text NOT NULL,
    sealed_by text GENERATED ALWAYS AS (
CASE
    WHEN ("left"(why, 1) = ''::text) THEN split_part(substr(why, 2), ':'::text, 1)
    ELSE NULL::text
END) STORED
);
ALTER TABLE idempotency_gateway.audit ALTER COLUMN entry ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME idempotency_gateway.audit_entry_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE idempotency_gateway.content (
    digest bytea NOT NULL,
    operation_id uuid NOT NULL,
    until_us bigint NOT NULL,
    check_us bigint NOT NULL,
    fingerprint bytea NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0.05', autovacuum_vacuum_insert_scale_factor='0.1', autovacuum_analyze_scale_factor='0.05');
CREATE TABLE idempotency_gateway.delivery (
    operation_id uuid NOT NULL,
    acceptance_id uuid NOT NULL,
    accepted_us bigint NOT NULL,
    since_us bigint NOT NULL,
    next_attempt_us bigint NOT NULL,
    deliver_until_us bigint NOT NULL,
    credited_us bigint DEFAULT 0 NOT NULL,
    request_bytes integer NOT NULL,
    answers integer NOT NULL,
    lane_number bigint DEFAULT 0 NOT NULL,
    lane_rank bigint,
    stopped_us bigint,
    stops_lane boolean DEFAULT true NOT NULL,
    is_behind boolean DEFAULT false NOT NULL,
    lane bytea,
    waits text,
    service text NOT NULL,
    operation text NOT NULL,
    route text NOT NULL,
    scope_digest bytea NOT NULL,
    failure text,
    reason text
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.01', autovacuum_vacuum_threshold='1000', autovacuum_vacuum_insert_scale_factor='0.1', autovacuum_analyze_scale_factor='0.05');
CREATE TABLE idempotency_gateway.epoch (
    only_row boolean DEFAULT true NOT NULL,
    identity uuid NOT NULL,
    system text NOT NULL,
    timeline text NOT NULL,
    memo bytea NOT NULL,
    generation text DEFAULT ''::text NOT NULL,
    level smallint DEFAULT 1 NOT NULL,
    CONSTRAINT epoch_only_row_check CHECK (only_row)
);
CREATE TABLE idempotency_gateway.event (
    at_us bigint NOT NULL,
    since_us bigint NOT NULL,
    due_us bigint NOT NULL,
    lease_until_us bigint DEFAULT 0 NOT NULL,
    tries integer DEFAULT 0 NOT NULL,
    redeliveries integer DEFAULT 0 NOT NULL,
    is_dead boolean DEFAULT false NOT NULL,
    service text NOT NULL,
    sink text NOT NULL,
    event_id text NOT NULL,
    type text NOT NULL,
    why text DEFAULT ''::text NOT NULL,
    content bytea NOT NULL,
    response bytea,
    line bytea,
    place bigint,
    is_behind boolean DEFAULT false NOT NULL,
    sealed_by text GENERATED ALWAYS AS (
CASE
    WHEN (substr(response, 1, 1) = '\x01'::bytea) THEN split_part(encode(substr(response, 2, 65), 'escape'::text), ':'::text, 1)
    ELSE NULL::text
END) STORED,
    why_sealed_by text GENERATED ALWAYS AS (
CASE
    WHEN ("left"(why, 1) = ''::text) THEN split_part(substr(why, 2), ':'::text, 1)
    ELSE NULL::text
END) STORED
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0.01', autovacuum_vacuum_threshold='1000', autovacuum_vacuum_insert_scale_factor='0.1', autovacuum_analyze_scale_factor='0.05');
CREATE TABLE idempotency_gateway.gateway (
    gateway_id uuid NOT NULL,
    service text NOT NULL,
    operations text[] NOT NULL,
    seen_us bigint NOT NULL,
    replay_us bigint DEFAULT 0 NOT NULL,
    beat bigint,
    notes uuid,
    host text DEFAULT ''::text NOT NULL,
    boot text DEFAULT ''::text NOT NULL,
    vouched_for text DEFAULT ''::text NOT NULL,
    level smallint DEFAULT 1 NOT NULL
)
WITH (fillfactor='70');
CREATE TABLE idempotency_gateway.kind (
    kind integer NOT NULL,
    attempts integer NOT NULL,
    version smallint NOT NULL,
    status smallint NOT NULL,
    service text NOT NULL,
    route text NOT NULL,
    operation text NOT NULL,
    last_event text NOT NULL,
    key_id text NOT NULL,
    recipe bytea NOT NULL,
    api_version bytea NOT NULL,
    digest bytea NOT NULL
);
ALTER TABLE idempotency_gateway.kind ALTER COLUMN kind ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME idempotency_gateway.kind_kind_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE idempotency_gateway.migration (
    version integer NOT NULL,
    name text NOT NULL,
    checksum text DEFAULT ''::text NOT NULL,
    applied_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);
CREATE TABLE idempotency_gateway.tombstone (
    token bigint NOT NULL,
    completed_us bigint NOT NULL,
    kept_s integer NOT NULL,
    kind integer NOT NULL,
    operation_id uuid NOT NULL,
    scope uuid NOT NULL,
    fingerprint uuid NOT NULL,
    resource bytea
)
WITH (autovacuum_vacuum_scale_factor='0.05', autovacuum_vacuum_insert_scale_factor='0.1', autovacuum_analyze_scale_factor='0.05');
CREATE VIEW idempotency_gateway.narrow AS
 SELECT t.operation_id,
    '00000000-0000-0000-0000-000000000000'::uuid AS attempt_id,
    NULL::uuid AS resolution_id,
    t.token,
    t.completed_us AS first_claimed_us,
    t.completed_us AS claimed_us,
    (0)::bigint AS lease_until_us,
    (0)::bigint AS replay_until_us,
    (t.completed_us + (t.kept_s * (1000000)::bigint)) AS remember_until_us,
    t.completed_us,
    NULL::bigint AS due_us,
    NULL::bigint AS attention_us,
    NULL::bigint AS carried_us,
    k.attempts,
    0 AS lease_us,
    NULL::integer AS drop_day,
    k.version,
    k.status,
    false AS is_kept,
    'tombstone'::text AS state,
    k.last_event,
    NULL::text AS doubt,
    ''::text AS holder,
    k.route,
    k.operation,
    k.service AS of_service,
    uuid_send(t.scope) AS scope_digest,
    '\x'::bytea AS key_digest,
    NULL::text AS key,
    k.recipe,
    substr(uuid_send(t.fingerprint), 1, 8) AS digest,
    substr(uuid_send(t.fingerprint), 9) AS raw,
    k.key_id,
    NULL::bytea AS parts,
    t.resource,
    k.api_version,
    NULL::bytea AS probe_target,
    NULL::bytea AS probe_host,
    NULL::text AS sealed_by,
    ''::text AS request,
    NULL::text AS request_id,
    NULL::text AS trace_id
   FROM (idempotency_gateway.tombstone t
     JOIN idempotency_gateway.kind k ON ((k.kind = t.kind)));
CREATE TABLE idempotency_gateway.observation (
    entry uuid NOT NULL,
    service text NOT NULL,
    route text NOT NULL,
    operation_id uuid,
    began_us bigint NOT NULL,
    content bytea,
    seen bytea NOT NULL,
    verdict text NOT NULL,
    is_refused boolean NOT NULL,
    is_repeat boolean NOT NULL,
    is_rekeyed boolean NOT NULL
);
CREATE TABLE idempotency_gateway.operation (
    operation_id uuid NOT NULL,
    attempt_id uuid NOT NULL,
    resolution_id uuid,
    token bigint NOT NULL,
    first_claimed_us bigint NOT NULL,
    claimed_us bigint NOT NULL,
    lease_until_us bigint NOT NULL,
    replay_until_us bigint DEFAULT 0 NOT NULL,
    remember_until_us bigint DEFAULT 0 NOT NULL,
    completed_us bigint,
    due_us bigint,
    attention_us bigint,
    carried_us bigint,
    attempts integer NOT NULL,
    lease_us integer DEFAULT 0 NOT NULL,
    drop_day integer,
    version smallint NOT NULL,
    status smallint,
    is_kept boolean DEFAULT false NOT NULL,
    state text NOT NULL,
    last_event text NOT NULL,
    doubt text,
    holder text NOT NULL,
    route text NOT NULL,
    operation text NOT NULL,
    of_service text,
    scope_digest bytea NOT NULL,
    key_digest bytea NOT NULL,
    key text,
    recipe bytea,
    digest bytea,
    raw bytea,
    key_id text,
    parts bytea,
    resource bytea,
    api_version bytea,
    probe_target bytea,
    probe_host bytea,
    sealed_by text,
    request text DEFAULT ''::text NOT NULL,
    request_id text,
    trace_id text
)
WITH (fillfactor='45', autovacuum_vacuum_scale_factor='0.05', autovacuum_vacuum_insert_scale_factor='0.1', autovacuum_analyze_scale_factor='0.05');
CREATE TABLE idempotency_gateway.outbox (
    service text NOT NULL,
    content bytea NOT NULL
);
CREATE TABLE idempotency_gateway.pause (
    service text NOT NULL,
    operation text NOT NULL,
    since_us bigint NOT NULL,
    resumed_us bigint,
    who text NOT NULL,
    why text NOT NULL,
    sealed_by text GENERATED ALWAYS AS (
CASE
    WHEN ("left"(why, 1) = ''::text) THEN split_part(substr(why, 2), ':'::text, 1)
    ELSE NULL::text
END) STORED
);
CREATE TABLE idempotency_gateway.pause_audit (
    entry bigint NOT NULL,
    at_us bigint NOT NULL,
    is_resumed boolean NOT NULL,
    service text NOT NULL,
    operation text NOT NULL,
    who text NOT NULL,
    why text NOT NULL,
    sealed_by text GENERATED ALWAYS AS (
CASE
    WHEN ("left"(why, 1) = ''::text) THEN split_part(substr(why, 2), ':'::text, 1)
    ELSE NULL::text
END) STORED
);
ALTER TABLE idempotency_gateway.pause_audit ALTER COLUMN entry ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME idempotency_gateway.pause_audit_entry_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE idempotency_gateway.recipe (
    service text NOT NULL,
    operation text NOT NULL,
    recipe bytea NOT NULL,
    routes text NOT NULL,
    is_current boolean NOT NULL
);
CREATE TABLE idempotency_gateway.recovery (
    operation_id uuid NOT NULL,
    token bigint NOT NULL,
    held_until_us bigint NOT NULL,
    put_off_until_us bigint NOT NULL,
    check_us bigint NOT NULL,
    tries integer NOT NULL,
    background_tries integer DEFAULT 0 NOT NULL,
    asked_us bigint DEFAULT 0 NOT NULL,
    finding text DEFAULT ''::text NOT NULL
)
WITH (fillfactor='70');
CREATE VIEW idempotency_gateway.remembered AS
 SELECT operation.operation_id,
    operation.attempt_id,
    operation.resolution_id,
    operation.token,
    operation.first_claimed_us,
    operation.claimed_us,
    operation.lease_until_us,
    operation.replay_until_us,
    operation.remember_until_us,
    operation.completed_us,
    operation.due_us,
    operation.attention_us,
    operation.carried_us,
    operation.attempts,
    operation.lease_us,
    operation.drop_day,
    operation.version,
    operation.status,
    operation.is_kept,
    operation.state,
    operation.last_event,
    operation.doubt,
    operation.holder,
    operation.route,
    operation.operation,
    operation.of_service,
    operation.scope_digest,
    operation.key_digest,
    operation.key,
    operation.recipe,
    operation.digest,
    operation.raw,
    operation.key_id,
    operation.parts,
    operation.resource,
    operation.api_version,
    operation.probe_target,
    operation.probe_host,
    operation.sealed_by,
    operation.request,
    operation.request_id,
    operation.trace_id
   FROM idempotency_gateway.operation
UNION ALL
 SELECT narrow.operation_id,
    narrow.attempt_id,
    narrow.resolution_id,
    narrow.token,
    narrow.first_claimed_us,
    narrow.claimed_us,
    narrow.lease_until_us,
    narrow.replay_until_us,
    narrow.remember_until_us,
    narrow.completed_us,
    narrow.due_us,
    narrow.attention_us,
    narrow.carried_us,
    narrow.attempts,
    narrow.lease_us,
    narrow.drop_day,
    narrow.version,
    narrow.status,
    narrow.is_kept,
    narrow.state,
    narrow.last_event,
    narrow.doubt,
    narrow.holder,
    narrow.route,
    narrow.operation,
    narrow.of_service,
    narrow.scope_digest,
    narrow.key_digest,
    narrow.key,
    narrow.recipe,
    narrow.digest,
    narrow.raw,
    narrow.key_id,
    narrow.parts,
    narrow.resource,
    narrow.api_version,
    narrow.probe_target,
    narrow.probe_host,
    narrow.sealed_by,
    narrow.request,
    narrow.request_id,
    narrow.trace_id
   FROM idempotency_gateway.narrow;
CREATE TABLE idempotency_gateway.request (
    operation_id uuid NOT NULL,
    acceptance_id uuid NOT NULL,
    key_id text NOT NULL,
    sealed bytea NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0.01', autovacuum_vacuum_threshold='1000', toast.autovacuum_vacuum_scale_factor='0.01', toast.autovacuum_vacuum_threshold='1000');
ALTER TABLE ONLY idempotency_gateway.request ALTER COLUMN sealed SET STORAGE EXTERNAL;
CREATE TABLE idempotency_gateway.response (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    reason bytea NOT NULL,
    headers bytea NOT NULL,
    body bytea
)
PARTITION BY LIST (drop_day);
CREATE TABLE idempotency_gateway.response_20785 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    reason bytea NOT NULL,
    headers bytea NOT NULL,
    body bytea
);
CREATE TABLE idempotency_gateway.response_20786 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    reason bytea NOT NULL,
    headers bytea NOT NULL,
    body bytea
);
CREATE TABLE idempotency_gateway.response_20787 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    reason bytea NOT NULL,
    headers bytea NOT NULL,
    body bytea
);
CREATE TABLE idempotency_gateway.response_20788 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    reason bytea NOT NULL,
    headers bytea NOT NULL,
    body bytea
);
CREATE TABLE idempotency_gateway.response_20789 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    reason bytea NOT NULL,
    headers bytea NOT NULL,
    body bytea
);
CREATE TABLE idempotency_gateway.response_20790 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    reason bytea NOT NULL,
    headers bytea NOT NULL,
    body bytea
);
CREATE TABLE idempotency_gateway.response_20791 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    reason bytea NOT NULL,
    headers bytea NOT NULL,
    body bytea
);
CREATE TABLE idempotency_gateway.response_20792 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    reason bytea NOT NULL,
    headers bytea NOT NULL,
    body bytea
);
CREATE TABLE idempotency_gateway.response_20793 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    reason bytea NOT NULL,
    headers bytea NOT NULL,
    body bytea
);
CREATE TABLE idempotency_gateway.response_20794 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    reason bytea NOT NULL,
    headers bytea NOT NULL,
    body bytea
);
CREATE TABLE idempotency_gateway.response_20795 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    reason bytea NOT NULL,
    headers bytea NOT NULL,
    body bytea
);
CREATE TABLE idempotency_gateway.response_20796 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    reason bytea NOT NULL,
    headers bytea NOT NULL,
    body bytea
);
CREATE TABLE idempotency_gateway.response_20797 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    reason bytea NOT NULL,
    headers bytea NOT NULL,
    body bytea
);
CREATE TABLE idempotency_gateway.response_20804 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    reason bytea NOT NULL,
    headers bytea NOT NULL,
    body bytea
);
CREATE TABLE idempotency_gateway.response_20811 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    reason bytea NOT NULL,
    headers bytea NOT NULL,
    body bytea
);
CREATE TABLE idempotency_gateway.response_20818 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    reason bytea NOT NULL,
    headers bytea NOT NULL,
    body bytea
);
CREATE TABLE idempotency_gateway.response_20825 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    reason bytea NOT NULL,
    headers bytea NOT NULL,
    body bytea
);
CREATE TABLE idempotency_gateway.response_20832 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    reason bytea NOT NULL,
    headers bytea NOT NULL,
    body bytea
);
CREATE TABLE idempotency_gateway.response_20839 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    reason bytea NOT NULL,
    headers bytea NOT NULL,
    body bytea
);
CREATE TABLE idempotency_gateway.response_20846 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    reason bytea NOT NULL,
    headers bytea NOT NULL,
    body bytea
);
CREATE TABLE idempotency_gateway.response_20853 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    reason bytea NOT NULL,
    headers bytea NOT NULL,
    body bytea
);
CREATE TABLE idempotency_gateway.response_20860 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    reason bytea NOT NULL,
    headers bytea NOT NULL,
    body bytea
);
CREATE TABLE idempotency_gateway.response_20888 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    reason bytea NOT NULL,
    headers bytea NOT NULL,
    body bytea
);
CREATE TABLE idempotency_gateway.response_20916 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    reason bytea NOT NULL,
    headers bytea NOT NULL,
    body bytea
);
CREATE TABLE idempotency_gateway.response_20944 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    reason bytea NOT NULL,
    headers bytea NOT NULL,
    body bytea
);
CREATE TABLE idempotency_gateway.response_20972 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    reason bytea NOT NULL,
    headers bytea NOT NULL,
    body bytea
);
CREATE TABLE idempotency_gateway.response_21000 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    reason bytea NOT NULL,
    headers bytea NOT NULL,
    body bytea
);
CREATE TABLE idempotency_gateway.response_21028 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    reason bytea NOT NULL,
    headers bytea NOT NULL,
    body bytea
);
CREATE TABLE idempotency_gateway.response_21056 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    reason bytea NOT NULL,
    headers bytea NOT NULL,
    body bytea
);
CREATE TABLE idempotency_gateway.response_21084 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    reason bytea NOT NULL,
    headers bytea NOT NULL,
    body bytea
);
CREATE TABLE idempotency_gateway.response_21112 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    reason bytea NOT NULL,
    headers bytea NOT NULL,
    body bytea
);
CREATE TABLE idempotency_gateway.response_21140 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    reason bytea NOT NULL,
    headers bytea NOT NULL,
    body bytea
);
CREATE TABLE idempotency_gateway.response_21168 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    reason bytea NOT NULL,
    headers bytea NOT NULL,
    body bytea
);
CREATE TABLE idempotency_gateway.response_21196 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    reason bytea NOT NULL,
    headers bytea NOT NULL,
    body bytea
);
CREATE TABLE idempotency_gateway.response_21224 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    reason bytea NOT NULL,
    headers bytea NOT NULL,
    body bytea
);
CREATE TABLE idempotency_gateway.response_21252 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    reason bytea NOT NULL,
    headers bytea NOT NULL,
    body bytea
);
CREATE TABLE idempotency_gateway.response_21280 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    reason bytea NOT NULL,
    headers bytea NOT NULL,
    body bytea
);
CREATE TABLE idempotency_gateway.response_21308 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    reason bytea NOT NULL,
    headers bytea NOT NULL,
    body bytea
);
CREATE TABLE idempotency_gateway.response_21336 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    reason bytea NOT NULL,
    headers bytea NOT NULL,
    body bytea
);
CREATE TABLE idempotency_gateway.response_21364 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    reason bytea NOT NULL,
    headers bytea NOT NULL,
    body bytea
);
CREATE TABLE idempotency_gateway.response_21392 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    reason bytea NOT NULL,
    headers bytea NOT NULL,
    body bytea
);
CREATE TABLE idempotency_gateway.response_21420 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    reason bytea NOT NULL,
    headers bytea NOT NULL,
    body bytea
);
CREATE TABLE idempotency_gateway.response_21448 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    reason bytea NOT NULL,
    headers bytea NOT NULL,
    body bytea
);
CREATE TABLE idempotency_gateway.response_21476 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    reason bytea NOT NULL,
    headers bytea NOT NULL,
    body bytea
);
CREATE TABLE idempotency_gateway.response_21504 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    reason bytea NOT NULL,
    headers bytea NOT NULL,
    body bytea
);
CREATE TABLE idempotency_gateway.response_21532 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    reason bytea NOT NULL,
    headers bytea NOT NULL,
    body bytea
);
CREATE TABLE idempotency_gateway.response_21840 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    reason bytea NOT NULL,
    headers bytea NOT NULL,
    body bytea
);
CREATE TABLE idempotency_gateway.response_22204 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    reason bytea NOT NULL,
    headers bytea NOT NULL,
    body bytea
);
CREATE TABLE idempotency_gateway.response_22568 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    reason bytea NOT NULL,
    headers bytea NOT NULL,
    body bytea
);
CREATE TABLE idempotency_gateway.response_22932 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    reason bytea NOT NULL,
    headers bytea NOT NULL,
    body bytea
);
CREATE TABLE idempotency_gateway.response_23296 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    reason bytea NOT NULL,
    headers bytea NOT NULL,
    body bytea
);
CREATE TABLE idempotency_gateway.response_23660 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    reason bytea NOT NULL,
    headers bytea NOT NULL,
    body bytea
);
CREATE TABLE idempotency_gateway.response_24024 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    reason bytea NOT NULL,
    headers bytea NOT NULL,
    body bytea
);
CREATE TABLE idempotency_gateway.response_24388 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    reason bytea NOT NULL,
    headers bytea NOT NULL,
    body bytea
);
CREATE TABLE idempotency_gateway.response_24752 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    reason bytea NOT NULL,
    headers bytea NOT NULL,
    body bytea
);
CREATE TABLE idempotency_gateway.response_36400 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    reason bytea NOT NULL,
    headers bytea NOT NULL,
    body bytea
);
CREATE TABLE idempotency_gateway.suspension (
    service text NOT NULL,
    sink text NOT NULL,
    why text NOT NULL,
    sealed_by text GENERATED ALWAYS AS (
CASE
    WHEN ("left"(why, 1) = ''::text) THEN split_part(substr(why, 2), ':'::text, 1)
    ELSE NULL::text
END) STORED
);
CREATE SEQUENCE idempotency_gateway.token
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
CREATE TABLE idempotency_gateway.turn (
    name text NOT NULL,
    holder uuid NOT NULL,
    until_us bigint NOT NULL
)
WITH (fillfactor='20');
CREATE TABLE idempotency_gateway.upkeep (
    only_row boolean DEFAULT true NOT NULL,
    passed_token bigint NOT NULL,
    CONSTRAINT upkeep_only_row_check CHECK (only_row)
);
CREATE TABLE idempotency_gateway.witness (
    link uuid NOT NULL,
    number bigint NOT NULL,
    kept_number bigint NOT NULL,
    check_us bigint NOT NULL
)
WITH (fillfactor='20');
ALTER TABLE ONLY idempotency_gateway.response ATTACH PARTITION idempotency_gateway.response_20785 FOR VALUES IN (20785);
ALTER TABLE ONLY idempotency_gateway.response ATTACH PARTITION idempotency_gateway.response_20786 FOR VALUES IN (20786);
ALTER TABLE ONLY idempotency_gateway.response ATTACH PARTITION idempotency_gateway.response_20787 FOR VALUES IN (20787);
ALTER TABLE ONLY idempotency_gateway.response ATTACH PARTITION idempotency_gateway.response_20788 FOR VALUES IN (20788);
ALTER TABLE ONLY idempotency_gateway.response ATTACH PARTITION idempotency_gateway.response_20789 FOR VALUES IN (20789);
ALTER TABLE ONLY idempotency_gateway.response ATTACH PARTITION idempotency_gateway.response_20790 FOR VALUES IN (20790);
ALTER TABLE ONLY idempotency_gateway.response ATTACH PARTITION idempotency_gateway.response_20791 FOR VALUES IN (20791);
ALTER TABLE ONLY idempotency_gateway.response ATTACH PARTITION idempotency_gateway.response_20792 FOR VALUES IN (20792);
ALTER TABLE ONLY idempotency_gateway.response ATTACH PARTITION idempotency_gateway.response_20793 FOR VALUES IN (20793);
ALTER TABLE ONLY idempotency_gateway.response ATTACH PARTITION idempotency_gateway.response_20794 FOR VALUES IN (20794);
ALTER TABLE ONLY idempotency_gateway.response ATTACH PARTITION idempotency_gateway.response_20795 FOR VALUES IN (20795);
ALTER TABLE ONLY idempotency_gateway.response ATTACH PARTITION idempotency_gateway.response_20796 FOR VALUES IN (20796);
ALTER TABLE ONLY idempotency_gateway.response ATTACH PARTITION idempotency_gateway.response_20797 FOR VALUES IN (20797);
ALTER TABLE ONLY idempotency_gateway.response ATTACH PARTITION idempotency_gateway.response_20804 FOR VALUES IN (20804);
ALTER TABLE ONLY idempotency_gateway.response ATTACH PARTITION idempotency_gateway.response_20811 FOR VALUES IN (20811);
ALTER TABLE ONLY idempotency_gateway.response ATTACH PARTITION idempotency_gateway.response_20818 FOR VALUES IN (20818);
ALTER TABLE ONLY idempotency_gateway.response ATTACH PARTITION idempotency_gateway.response_20825 FOR VALUES IN (20825);
ALTER TABLE ONLY idempotency_gateway.response ATTACH PARTITION idempotency_gateway.response_20832 FOR VALUES IN (20832);
ALTER TABLE ONLY idempotency_gateway.response ATTACH PARTITION idempotency_gateway.response_20839 FOR VALUES IN (20839);
ALTER TABLE ONLY idempotency_gateway.response ATTACH PARTITION idempotency_gateway.response_20846 FOR VALUES IN (20846);
ALTER TABLE ONLY idempotency_gateway.response ATTACH PARTITION idempotency_gateway.response_20853 FOR VALUES IN (20853);
ALTER TABLE ONLY idempotency_gateway.response ATTACH PARTITION idempotency_gateway.response_20860 FOR VALUES IN (20860);
ALTER TABLE ONLY idempotency_gateway.response ATTACH PARTITION idempotency_gateway.response_20888 FOR VALUES IN (20888);
ALTER TABLE ONLY idempotency_gateway.response ATTACH PARTITION idempotency_gateway.response_20916 FOR VALUES IN (20916);
ALTER TABLE ONLY idempotency_gateway.response ATTACH PARTITION idempotency_gateway.response_20944 FOR VALUES IN (20944);
ALTER TABLE ONLY idempotency_gateway.response ATTACH PARTITION idempotency_gateway.response_20972 FOR VALUES IN (20972);
ALTER TABLE ONLY idempotency_gateway.response ATTACH PARTITION idempotency_gateway.response_21000 FOR VALUES IN (21000);
ALTER TABLE ONLY idempotency_gateway.response ATTACH PARTITION idempotency_gateway.response_21028 FOR VALUES IN (21028);
ALTER TABLE ONLY idempotency_gateway.response ATTACH PARTITION idempotency_gateway.response_21056 FOR VALUES IN (21056);
ALTER TABLE ONLY idempotency_gateway.response ATTACH PARTITION idempotency_gateway.response_21084 FOR VALUES IN (21084);
ALTER TABLE ONLY idempotency_gateway.response ATTACH PARTITION idempotency_gateway.response_21112 FOR VALUES IN (21112);
ALTER TABLE ONLY idempotency_gateway.response ATTACH PARTITION idempotency_gateway.response_21140 FOR VALUES IN (21140);
ALTER TABLE ONLY idempotency_gateway.response ATTACH PARTITION idempotency_gateway.response_21168 FOR VALUES IN (21168);
ALTER TABLE ONLY idempotency_gateway.response ATTACH PARTITION idempotency_gateway.response_21196 FOR VALUES IN (21196);
ALTER TABLE ONLY idempotency_gateway.response ATTACH PARTITION idempotency_gateway.response_21224 FOR VALUES IN (21224);
ALTER TABLE ONLY idempotency_gateway.response ATTACH PARTITION idempotency_gateway.response_21252 FOR VALUES IN (21252);
ALTER TABLE ONLY idempotency_gateway.response ATTACH PARTITION idempotency_gateway.response_21280 FOR VALUES IN (21280);
ALTER TABLE ONLY idempotency_gateway.response ATTACH PARTITION idempotency_gateway.response_21308 FOR VALUES IN (21308);
ALTER TABLE ONLY idempotency_gateway.response ATTACH PARTITION idempotency_gateway.response_21336 FOR VALUES IN (21336);
ALTER TABLE ONLY idempotency_gateway.response ATTACH PARTITION idempotency_gateway.response_21364 FOR VALUES IN (21364);
ALTER TABLE ONLY idempotency_gateway.response ATTACH PARTITION idempotency_gateway.response_21392 FOR VALUES IN (21392);
ALTER TABLE ONLY idempotency_gateway.response ATTACH PARTITION idempotency_gateway.response_21420 FOR VALUES IN (21420);
ALTER TABLE ONLY idempotency_gateway.response ATTACH PARTITION idempotency_gateway.response_21448 FOR VALUES IN (21448);
ALTER TABLE ONLY idempotency_gateway.response ATTACH PARTITION idempotency_gateway.response_21476 FOR VALUES IN (21476);
ALTER TABLE ONLY idempotency_gateway.response ATTACH PARTITION idempotency_gateway.response_21504 FOR VALUES IN (21504);
ALTER TABLE ONLY idempotency_gateway.response ATTACH PARTITION idempotency_gateway.response_21532 FOR VALUES IN (21532);
ALTER TABLE ONLY idempotency_gateway.response ATTACH PARTITION idempotency_gateway.response_21840 FOR VALUES IN (21840);
ALTER TABLE ONLY idempotency_gateway.response ATTACH PARTITION idempotency_gateway.response_22204 FOR VALUES IN (22204);
ALTER TABLE ONLY idempotency_gateway.response ATTACH PARTITION idempotency_gateway.response_22568 FOR VALUES IN (22568);
ALTER TABLE ONLY idempotency_gateway.response ATTACH PARTITION idempotency_gateway.response_22932 FOR VALUES IN (22932);
ALTER TABLE ONLY idempotency_gateway.response ATTACH PARTITION idempotency_gateway.response_23296 FOR VALUES IN (23296);
ALTER TABLE ONLY idempotency_gateway.response ATTACH PARTITION idempotency_gateway.response_23660 FOR VALUES IN (23660);
ALTER TABLE ONLY idempotency_gateway.response ATTACH PARTITION idempotency_gateway.response_24024 FOR VALUES IN (24024);
ALTER TABLE ONLY idempotency_gateway.response ATTACH PARTITION idempotency_gateway.response_24388 FOR VALUES IN (24388);
ALTER TABLE ONLY idempotency_gateway.response ATTACH PARTITION idempotency_gateway.response_24752 FOR VALUES IN (24752);
ALTER TABLE ONLY idempotency_gateway.response ATTACH PARTITION idempotency_gateway.response_36400 FOR VALUES IN (36400);
INSERT INTO idempotency_gateway.delivery VALUES ('ffad008b-f793-85de-8016-562c07b4053e', '0fbf588e-7a83-47be-9350-9e0629e422f9', 1795788741609762, 1795788741609762, 1795788742403180, 1827324741609762, 0, 260, 1, 0, NULL, NULL, true, false, NULL, 'accepted', 'shop', 'order', 'order', '\x2cfdfcc638acd71e6e7c5c9d89f2a7306de9137de30c4b3d974696061146625f', 'answered_503', NULL);
INSERT INTO idempotency_gateway.epoch VALUES (true, '329e3bee-e3f6-4bb3-881a-a7c1b0bb3b20', '7712853901393891198', '00000001', '\x', '', 1);
INSERT INTO idempotency_gateway.gateway VALUES ('57623ec1-e1bc-472d-a1c3-02c5945f59bc', 'shop', '{charge,order}', 1795788741396142, 315360000000000, 1, '77f8ff9c-15e4-4a4d-8055-5a447ce3f7d9', 'vm', 'ec87c132-b430-4a76-af54-85aeb8f3d7a9', '', 1);
INSERT INTO idempotency_gateway.migration VALUES (1, '0001_operations', 'cd7ba31c472fe7f5dd5b1ea0b3b1dd6d21ca22b8ad7404bd665b3525569ff362', '2026-11-27 14:12:21.273698+00');
INSERT INTO idempotency_gateway.operation VALUES ('1efa8387-21f5-83a7-bea9-c4ac3f5f1f16', 'b580af54-5679-42eb-a9c4-cb53a8b256ba', NULL, 1, 1795788741556589, 1795788741556589, 0, 2111148741586429, 2111148741586429, 1795788741586429, 2111148741586429, NULL, NULL, 1, 0, 36400, 1, 201, false, 'completed', 'complete', NULL, 'vm:24518:86bc03ee', 'charge', 'charge', NULL, '\x2cfdfcc638acd71e6e7c5c9d89f2a7306de9137de30c4b3d974696061146625f', '\xb95d455b5fc690efe0a2afe6ace94cdda261f0c4393997b9e690be0d5eec63ec', NULL, '\x047f1576f4e385e9b1f940e3f2413086', '\x96bb50019985cef293a28869b5ce2befd32e2b603819fab784310186d31c6cf0', '\x080c12d4b9899829741e7cc68d818dbf0a610062bfb8ec7444c45d8b2930023a', '', '\xfb512062fb616042a491bff9f160f89300000000000000009a012a319756a147', NULL, NULL, NULL, NULL, 'frozen', 'POST - frozen:RwGn2wPe7MZilAI+owr9A0w50bekaJsqcfOjNBfYKm71dsIG7vh8PfBgFyCdFuLw2pSNuL4bmR7vwrGC', NULL, NULL);
INSERT INTO idempotency_gateway.operation VALUES ('a596fc96-0a32-817d-a73c-6bf10c513eb8', 'b7441f2e-16ae-4bf1-890a-5e4ee27124f0', NULL, 2, 1795788741591181, 1795788741591181, 0, 0, 2111148741595972, NULL, 2111148746591181, NULL, NULL, 1, 0, NULL, 1, NULL, false, 'released', 'release', NULL, 'vm:24518:86bc03ee', 'charge', 'charge', NULL, '\x2cfdfcc638acd71e6e7c5c9d89f2a7306de9137de30c4b3d974696061146625f', '\x545abad01019b97e48c5dedade40c4faeef7400a3ca7a69627b6864d4cd14b6a', NULL, '\x047f1576f4e385e9b1f940e3f2413086', '\x96bb50019985cef293a28869b5ce2befd32e2b603819fab784310186d31c6cf0', '\x080c12d4b9899829741e7cc68d818dbf0a610062bfb8ec7444c45d8b2930023a', '', '\x52738655a808ada04c5b8e9e66664fe900000000000000008d8d9700ac6d1ecd', NULL, NULL, NULL, NULL, 'frozen', 'POST - frozen:zYc7lOZgGuaKAcg0hTVJTvfIGhPJZox5jjS/K4i2nLp0YlV6sb8iYo5oU8mGlkuDvEOddlcHsjyH821u', NULL, NULL);
INSERT INTO idempotency_gateway.operation VALUES ('f69ff997-ed3f-87d3-91aa-1435b869a4b2', 'fd09bda2-93fe-4c9c-a048-ee29dfc4200a', NULL, 3, 1795788741601820, 1795788741601820, 1795788741604029, 0, 0, NULL, NULL, 1795788741604029, NULL, 1, 30000000, NULL, 1, NULL, false, 'in_doubt', 'abandon', 'reset', 'vm:24518:86bc03ee', 'charge', 'charge', NULL, '\x2cfdfcc638acd71e6e7c5c9d89f2a7306de9137de30c4b3d974696061146625f', '\x554dad576657d3838e66bf80c1973dfce5ef9cb9aa648b6563ad34121f9e6f99', NULL, '\x047f1576f4e385e9b1f940e3f2413086', '\x96bb50019985cef293a28869b5ce2befd32e2b603819fab784310186d31c6cf0', '\x080c12d4b9899829741e7cc68d818dbf0a610062bfb8ec7444c45d8b2930023a', '', '\x52b2fa5ffc69a20f1b0bd87e499ad2f200000000000000001bfcf3fe54daf01b', NULL, NULL, NULL, NULL, 'frozen', 'POST - frozen:1fKrb/yZdXvEE4x81fnlxTQ9ehJ0O1QEmGzGVluH3wPktDVefm5M8jIUr/B2gfqkBqJF1Dqdxu3f+8Zb', NULL, NULL);
INSERT INTO idempotency_gateway.operation VALUES ('e1e61c76-0614-86ff-bf39-8f5964b1cb7b', 'c66c964b-b88d-47bf-8b22-12ef79223dfa', NULL, 6, 1795788741615684, 1795788741615684, 1795788771615684, 0, 0, NULL, 2111148746615684, NULL, NULL, 1, 30000000, NULL, 1, NULL, false, 'claimed', 'claim', NULL, 'vm:24518:86bc03ee', 'charge', 'charge', NULL, '\x2cfdfcc638acd71e6e7c5c9d89f2a7306de9137de30c4b3d974696061146625f', '\x7faf5c80bc41c5fa7e6064df1429277b4723052226d14cfc3bbbb540a5e33977', NULL, '\x047f1576f4e385e9b1f940e3f2413086', '\x96bb50019985cef293a28869b5ce2befd32e2b603819fab784310186d31c6cf0', '\x080c12d4b9899829741e7cc68d818dbf0a610062bfb8ec7444c45d8b2930023a', '', '\x7008695abf2d539e81df1ad0025f020700000000000000007ee0fde1048c1ff6', NULL, NULL, NULL, NULL, 'frozen', 'POST - frozen:wI1Pb6XWyeXWs1tXnvXHCPkTFDT1AhrA8F5i5goub2k37dhihhzr5uVzvLBtOZC0EAWfHBFPgkvIqhje', NULL, NULL);
INSERT INTO idempotency_gateway.operation VALUES ('e40120c8-d512-87d7-b44d-c83f14f3f9f3', 'cb3b8f38-3d82-42d8-9f75-f507703dbaab', NULL, 7, 1795788741615684, 1795788741615684, 1795788771615684, 0, 0, NULL, 2111148746615684, NULL, NULL, 1, 30000000, NULL, 1, NULL, false, 'claimed', 'claim', NULL, 'vm:24518:86bc03ee', 'charge', 'charge', NULL, '\x2cfdfcc638acd71e6e7c5c9d89f2a7306de9137de30c4b3d974696061146625f', '\xf7d67622d33169e90d2c66efab38d3180386001ca9c2bc122481dc3626e972a2', NULL, '\x047f1576f4e385e9b1f940e3f2413086', '\x96bb50019985cef293a28869b5ce2befd32e2b603819fab784310186d31c6cf0', '\x080c12d4b9899829741e7cc68d818dbf0a610062bfb8ec7444c45d8b2930023a', '', '\x52463e79b00d54d5294e6a611c597f1a00000000000000009ca65adbd6c84567', NULL, NULL, NULL, NULL, 'frozen', 'POST - frozen:u6pwsh0N49KE+7cJPOmScnORoWNjsgrz9bqlJsxCGHPy/inE/2TjNn0dxkZuBNWX6r35RZ9uu+2XKPGM', NULL, NULL);
INSERT INTO idempotency_gateway.operation VALUES ('ffad008b-f793-85de-8016-562c07b4053e', '7fb67115-5cc3-44f2-ae41-f3bffb9536fe', NULL, 5, 1795788741609762, 1795788741612710, 0, 0, 0, NULL, 1827324741609762, NULL, NULL, 1, 0, NULL, 1, NULL, true, 'accepted', 'postpone', NULL, 'vm:24518:86bc03ee', 'order', 'order', NULL, '\x2cfdfcc638acd71e6e7c5c9d89f2a7306de9137de30c4b3d974696061146625f', '\x609fbd65d00f80c4c8f75aebdd3108c4ded494c184bbf087c1cc586696ae81ba', NULL, '\x047f1576f4e385e9b1f940e3f2413086', '\xc5603ef6b1d64f935ba6fd954c2f091854857827161294053d73fe158d709991', '\x39175aab2e26dab244f63d4c2c9299239e4e6acf56d3c6f76b9e487be65b68ce', '', '\x9e18a38f897bbb8aa0bb98b8a2ecb04400000000000000007ad3f4abbb7e5639', NULL, NULL, NULL, NULL, 'frozen', 'POST - frozen:sFJFcw0gg1C6IFAUWR8FdZyG2qcfBlNxSxdd8KQTC7Zcf2+BOd2mZHw95j6rWlATOMKlvexIteqs/Tg=', NULL, NULL);
INSERT INTO idempotency_gateway.outbox VALUES ('shop', '\x7b2273657276696365223a2273686f70222c22736f75726365223a2275726e3a6964656d706f74656e63792d676174657761793a73686f70222c226576656e745f62797465735f6d6178223a36353533362c22737562736372697074696f6e73223a5b5d7d');
INSERT INTO idempotency_gateway.recipe VALUES ('shop', 'charge', '\xc4293a9926c43091a5294e47334ed90bf6a5561b5b02f570c40390ea55a22c86', '[{"order": 0, "methods": ["PATCH", "POST"], "host": null, "path": "/charges", "enforced": 1.0, "fingerprint_keys": {}}]', true);
INSERT INTO idempotency_gateway.recipe VALUES ('shop', 'order', '\x6692733b03b23631671303df32d8a5632597fe3409de1a0dfe06f789cc8c9ff7', '[{"order": 1, "methods": ["PATCH", "POST"], "host": null, "path": "/orders", "enforced": 1.0, "fingerprint_keys": {}}]', true);
INSERT INTO idempotency_gateway.request VALUES ('ffad008b-f793-85de-8016-562c07b4053e', '0fbf588e-7a83-47be-9350-9e0629e422f9', 'frozen', '\xe105902ce2eb173a49205cdbee6b9d68979f455e89259e1da1e6eae97c491e383dc8c104236c70e4193bf2eb58cbe1e59cc4200196030b13cd1df146afbb4f5cbff8bf29eb2640edce517dfc31c75db372003958d70924798ece6b4a40ac7254ee68fd1c466f85f9ae502e117e65ea890dccf844641c5eef4a9c186f2a12f5b643a11304728c9d41761aebbc49300dc08cea3a5bf003172a528c3e05734b670a30375065e0b321bc3097f370b5fa3638ebd12bd8840842c5a7bb705752c54c8c63ea227c4e2b0663e60732bd52d8811bcb0da4e4ac0f485e7c6300855c10c5214655a134622e5c4e82f373e759b7782b9bd835893d1b45803799805870d400e7ad606f1a');
INSERT INTO idempotency_gateway.response_36400 VALUES (1, 36400, '\x', '\x00000002000000080000007701686561646572730166726f7a656e3aa619e8840356f8ca55a08d1af8f0a5d9df42e40cfe7b95bd8ef9619c193393fd292659df0935f82ac9b3532500913382ebfdf64549653b8c5493a8d795059b259fa35254500790260cf9585b7fcbc99e504f7ba9f32f0cbf756ec609288f9583a399d40fd7cce64540b01f45c7b8d9', '\x0166726f7a656e3a536b41e04572494748d35698cba37e3f68e796a5704a6cef8e9c69e88caa702a588f8648bd6afbcf');
INSERT INTO idempotency_gateway.turn VALUES ('recovery shop e3b0c44298fc1c14', '8328c24c-2874-4e90-b1fe-4b3100b878a5', 1795788756417756);
INSERT INTO idempotency_gateway.turn VALUES ('sweep', '8328c24c-2874-4e90-b1fe-4b3100b878a5', 1795788756417756);
INSERT INTO idempotency_gateway.turn VALUES ('tally shop f3f76c9c19d737c2', '8328c24c-2874-4e90-b1fe-4b3100b878a5', 1795788756417756);
INSERT INTO idempotency_gateway.upkeep VALUES (true, 0);
INSERT INTO idempotency_gateway.witness VALUES ('d7228020-ee9f-4bec-8aba-0c755ca438ec', 5, 0, 1803564741552263);
INSERT INTO idempotency_gateway.witness VALUES ('2dbe5dea-cfd1-40c1-b0be-105dda913ada', 7, 0, 1803564741582668);
SELECT pg_catalog.setval('idempotency_gateway.audit_entry_seq', 1, false);
SELECT pg_catalog.setval('idempotency_gateway.kind_kind_seq', 1, false);
SELECT pg_catalog.setval('idempotency_gateway.pause_audit_entry_seq', 1, false);
SELECT pg_catalog.setval('idempotency_gateway.token', 33, true);
ALTER TABLE ONLY idempotency_gateway.audit
    ADD CONSTRAINT audit_pkey PRIMARY KEY (operation_id, entry);
ALTER TABLE ONLY idempotency_gateway.content
    ADD CONSTRAINT content_pkey PRIMARY KEY (digest, operation_id);
ALTER TABLE ONLY idempotency_gateway.delivery
    ADD CONSTRAINT delivery_pkey PRIMARY KEY (operation_id);
ALTER TABLE ONLY idempotency_gateway.epoch
    ADD CONSTRAINT epoch_pkey PRIMARY KEY (only_row);
ALTER TABLE ONLY idempotency_gateway.event
    ADD CONSTRAINT event_pkey PRIMARY KEY (service, sink, event_id);
ALTER TABLE ONLY idempotency_gateway.gateway
    ADD CONSTRAINT gateway_pkey PRIMARY KEY (gateway_id);
ALTER TABLE ONLY idempotency_gateway.kind
    ADD CONSTRAINT kind_digest_key UNIQUE (digest);
ALTER TABLE ONLY idempotency_gateway.kind
    ADD CONSTRAINT kind_pkey PRIMARY KEY (kind);
ALTER TABLE ONLY idempotency_gateway.migration
    ADD CONSTRAINT migration_pkey PRIMARY KEY (version);
ALTER TABLE ONLY idempotency_gateway.observation
    ADD CONSTRAINT observation_pkey PRIMARY KEY (entry);
ALTER TABLE ONLY idempotency_gateway.operation
    ADD CONSTRAINT operation_pkey PRIMARY KEY (operation_id);
ALTER TABLE ONLY idempotency_gateway.outbox
    ADD CONSTRAINT outbox_pkey PRIMARY KEY (service);
ALTER TABLE ONLY idempotency_gateway.pause_audit
    ADD CONSTRAINT pause_audit_pkey PRIMARY KEY (entry);
ALTER TABLE ONLY idempotency_gateway.pause
    ADD CONSTRAINT pause_pkey PRIMARY KEY (service, operation);
ALTER TABLE ONLY idempotency_gateway.recipe
    ADD CONSTRAINT recipe_pkey PRIMARY KEY (service, operation);
ALTER TABLE ONLY idempotency_gateway.recovery
    ADD CONSTRAINT recovery_pkey PRIMARY KEY (operation_id);
ALTER TABLE ONLY idempotency_gateway.request
    ADD CONSTRAINT request_pkey PRIMARY KEY (operation_id);
ALTER TABLE ONLY idempotency_gateway.response
    ADD CONSTRAINT response_pkey PRIMARY KEY (token, drop_day);
ALTER TABLE ONLY idempotency_gateway.response_20785
    ADD CONSTRAINT response_20785_pkey PRIMARY KEY (token, drop_day);
ALTER TABLE ONLY idempotency_gateway.response_20786
    ADD CONSTRAINT response_20786_pkey PRIMARY KEY (token, drop_day);
ALTER TABLE ONLY idempotency_gateway.response_20787
    ADD CONSTRAINT response_20787_pkey PRIMARY KEY (token, drop_day);
ALTER TABLE ONLY idempotency_gateway.response_20788
    ADD CONSTRAINT response_20788_pkey PRIMARY KEY (token, drop_day);
ALTER TABLE ONLY idempotency_gateway.response_20789
    ADD CONSTRAINT response_20789_pkey PRIMARY KEY (token, drop_day);
ALTER TABLE ONLY idempotency_gateway.response_20790
    ADD CONSTRAINT response_20790_pkey PRIMARY KEY (token, drop_day);
ALTER TABLE ONLY idempotency_gateway.response_20791
    ADD CONSTRAINT response_20791_pkey PRIMARY KEY (token, drop_day);
ALTER TABLE ONLY idempotency_gateway.response_20792
    ADD CONSTRAINT response_20792_pkey PRIMARY KEY (token, drop_day);
ALTER TABLE ONLY idempotency_gateway.response_20793
    ADD CONSTRAINT response_20793_pkey PRIMARY KEY (token, drop_day);
ALTER TABLE ONLY idempotency_gateway.response_20794
    ADD CONSTRAINT response_20794_pkey PRIMARY KEY (token, drop_day);
ALTER TABLE ONLY idempotency_gateway.response_20795
    ADD CONSTRAINT response_20795_pkey PRIMARY KEY (token, drop_day);
ALTER TABLE ONLY idempotency_gateway.response_20796
    ADD CONSTRAINT response_20796_pkey PRIMARY KEY (token, drop_day);
ALTER TABLE ONLY idempotency_gateway.response_20797
    ADD CONSTRAINT response_20797_pkey PRIMARY KEY (token, drop_day);
ALTER TABLE ONLY idempotency_gateway.response_20804
    ADD CONSTRAINT response_20804_pkey PRIMARY KEY (token, drop_day);
ALTER TABLE ONLY idempotency_gateway.response_20811
    ADD CONSTRAINT response_20811_pkey PRIMARY KEY (token, drop_day);
ALTER TABLE ONLY idempotency_gateway.response_20818
    ADD CONSTRAINT response_20818_pkey PRIMARY KEY (token, drop_day);
ALTER TABLE ONLY idempotency_gateway.response_20825
    ADD CONSTRAINT response_20825_pkey PRIMARY KEY (token, drop_day);
ALTER TABLE ONLY idempotency_gateway.response_20832
    ADD CONSTRAINT response_20832_pkey PRIMARY KEY (token, drop_day);
ALTER TABLE ONLY idempotency_gateway.response_20839
    ADD CONSTRAINT response_20839_pkey PRIMARY KEY (token, drop_day);
ALTER TABLE ONLY idempotency_gateway.response_20846
    ADD CONSTRAINT response_20846_pkey PRIMARY KEY (token, drop_day);
ALTER TABLE ONLY idempotency_gateway.response_20853
    ADD CONSTRAINT response_20853_pkey PRIMARY KEY (token, drop_day);
ALTER TABLE ONLY idempotency_gateway.response_20860
    ADD CONSTRAINT response_20860_pkey PRIMARY KEY (token, drop_day);
ALTER TABLE ONLY idempotency_gateway.response_20888
    ADD CONSTRAINT response_20888_pkey PRIMARY KEY (token, drop_day);
ALTER TABLE ONLY idempotency_gateway.response_20916
    ADD CONSTRAINT response_20916_pkey PRIMARY KEY (token, drop_day);
ALTER TABLE ONLY idempotency_gateway.response_20944
    ADD CONSTRAINT response_20944_pkey PRIMARY KEY (token, drop_day);
ALTER TABLE ONLY idempotency_gateway.response_20972
    ADD CONSTRAINT response_20972_pkey PRIMARY KEY (token, drop_day);
ALTER TABLE ONLY idempotency_gateway.response_21000
    ADD CONSTRAINT response_21000_pkey PRIMARY KEY (token, drop_day);
ALTER TABLE ONLY idempotency_gateway.response_21028
    ADD CONSTRAINT response_21028_pkey PRIMARY KEY (token, drop_day);
ALTER TABLE ONLY idempotency_gateway.response_21056
    ADD CONSTRAINT response_21056_pkey PRIMARY KEY (token, drop_day);
ALTER TABLE ONLY idempotency_gateway.response_21084
    ADD CONSTRAINT response_21084_pkey PRIMARY KEY (token, drop_day);
ALTER TABLE ONLY idempotency_gateway.response_21112
    ADD CONSTRAINT response_21112_pkey PRIMARY KEY (token, drop_day);
ALTER TABLE ONLY idempotency_gateway.response_21140
    ADD CONSTRAINT response_21140_pkey PRIMARY KEY (token, drop_day);
ALTER TABLE ONLY idempotency_gateway.response_21168
    ADD CONSTRAINT response_21168_pkey PRIMARY KEY (token, drop_day);
ALTER TABLE ONLY idempotency_gateway.response_21196
    ADD CONSTRAINT response_21196_pkey PRIMARY KEY (token, drop_day);
ALTER TABLE ONLY idempotency_gateway.response_21224
    ADD CONSTRAINT response_21224_pkey PRIMARY KEY (token, drop_day);
ALTER TABLE ONLY idempotency_gateway.response_21252
    ADD CONSTRAINT response_21252_pkey PRIMARY KEY (token, drop_day);
ALTER TABLE ONLY idempotency_gateway.response_21280
    ADD CONSTRAINT response_21280_pkey PRIMARY KEY (token, drop_day);
ALTER TABLE ONLY idempotency_gateway.response_21308
    ADD CONSTRAINT response_21308_pkey PRIMARY KEY (token, drop_day);
ALTER TABLE ONLY idempotency_gateway.response_21336
    ADD CONSTRAINT response_21336_pkey PRIMARY KEY (token, drop_day);
ALTER TABLE ONLY idempotency_gateway.response_21364
    ADD CONSTRAINT response_21364_pkey PRIMARY KEY (token, drop_day);
ALTER TABLE ONLY idempotency_gateway.response_21392
    ADD CONSTRAINT response_21392_pkey PRIMARY KEY (token, drop_day);
ALTER TABLE ONLY idempotency_gateway.response_21420
    ADD CONSTRAINT response_21420_pkey PRIMARY KEY (token, drop_day);
ALTER TABLE ONLY idempotency_gateway.response_21448
    ADD CONSTRAINT response_21448_pkey PRIMARY KEY (token, drop_day);
ALTER TABLE ONLY idempotency_gateway.response_21476
    ADD CONSTRAINT response_21476_pkey PRIMARY KEY (token, drop_day);
ALTER TABLE ONLY idempotency_gateway.response_21504
    ADD CONSTRAINT response_21504_pkey PRIMARY KEY (token, drop_day);
ALTER TABLE ONLY idempotency_gateway.response_21532
    ADD CONSTRAINT response_21532_pkey PRIMARY KEY (token, drop_day);
ALTER TABLE ONLY idempotency_gateway.response_21840
    ADD CONSTRAINT response_21840_pkey PRIMARY KEY (token, drop_day);
ALTER TABLE ONLY idempotency_gateway.response_22204
    ADD CONSTRAINT response_22204_pkey PRIMARY KEY (token, drop_day);
ALTER TABLE ONLY idempotency_gateway.response_22568
    ADD CONSTRAINT response_22568_pkey PRIMARY KEY (token, drop_day);
ALTER TABLE ONLY idempotency_gateway.response_22932
    ADD CONSTRAINT response_22932_pkey PRIMARY KEY (token, drop_day);
ALTER TABLE ONLY idempotency_gateway.response_23296
    ADD CONSTRAINT response_23296_pkey PRIMARY KEY (token, drop_day);
ALTER TABLE ONLY idempotency_gateway.response_23660
    ADD CONSTRAINT response_23660_pkey PRIMARY KEY (token, drop_day);
ALTER TABLE ONLY idempotency_gateway.response_24024
    ADD CONSTRAINT response_24024_pkey PRIMARY KEY (token, drop_day);
ALTER TABLE ONLY idempotency_gateway.response_24388
    ADD CONSTRAINT response_24388_pkey PRIMARY KEY (token, drop_day);
ALTER TABLE ONLY idempotency_gateway.response_24752
    ADD CONSTRAINT response_24752_pkey PRIMARY KEY (token, drop_day);
ALTER TABLE ONLY idempotency_gateway.response_36400
    ADD CONSTRAINT response_36400_pkey PRIMARY KEY (token, drop_day);
ALTER TABLE ONLY idempotency_gateway.suspension
    ADD CONSTRAINT suspension_pkey PRIMARY KEY (service, sink);
ALTER TABLE ONLY idempotency_gateway.turn
    ADD CONSTRAINT turn_pkey PRIMARY KEY (name);
ALTER TABLE ONLY idempotency_gateway.upkeep
    ADD CONSTRAINT upkeep_pkey PRIMARY KEY (only_row);
ALTER TABLE ONLY idempotency_gateway.witness
    ADD CONSTRAINT witness_pkey PRIMARY KEY (link);
CREATE UNIQUE INDEX audit_entry ON idempotency_gateway.audit USING btree (entry);
CREATE INDEX audit_keep ON idempotency_gateway.audit USING btree (keep_until_us);
CREATE INDEX audit_sealed ON idempotency_gateway.audit USING btree (sealed_by) WHERE (sealed_by IS NOT NULL);
CREATE INDEX content_check ON idempotency_gateway.content USING btree (check_us);
CREATE INDEX delivery_dead ON idempotency_gateway.delivery USING btree (service) WHERE (waits = 'dead_letter'::text);
CREATE INDEX delivery_end ON idempotency_gateway.delivery USING btree (service, operation, deliver_until_us) WHERE (waits = 'accepted'::text);
CREATE UNIQUE INDEX delivery_lane ON idempotency_gateway.delivery USING btree (lane, lane_rank) WHERE (lane_rank IS NOT NULL);
CREATE INDEX delivery_next ON idempotency_gateway.delivery USING btree (service, operation, route, next_attempt_us) WHERE ((waits = 'accepted'::text) AND (NOT is_behind));
CREATE INDEX delivery_scope ON idempotency_gateway.delivery USING btree (service, route, scope_digest) WHERE (waits = 'accepted'::text);
CREATE INDEX delivery_stopped ON idempotency_gateway.delivery USING btree (service, route, stopped_us) WHERE ((stopped_us IS NOT NULL) AND (NOT is_behind));
CREATE INDEX event_dead ON idempotency_gateway.event USING btree (service, sink, event_id) WHERE is_dead;
CREATE INDEX event_due ON idempotency_gateway.event USING btree (service, sink, is_behind, due_us) INCLUDE (since_us) WHERE (NOT is_dead);
CREATE INDEX event_failed ON idempotency_gateway.event USING btree (service, sink, due_us) WHERE ((why <> ''::text) AND (NOT is_dead));
CREATE INDEX event_line ON idempotency_gateway.event USING btree (service, sink, line, place) WHERE ((line IS NOT NULL) AND (NOT is_dead));
CREATE INDEX event_sealed ON idempotency_gateway.event USING btree (sealed_by) WHERE (sealed_by IS NOT NULL);
CREATE INDEX event_why_sealed ON idempotency_gateway.event USING btree (why_sealed_by) WHERE (why_sealed_by IS NOT NULL);
CREATE INDEX observation_content ON idempotency_gateway.observation USING btree (service, content, began_us) WHERE (content IS NOT NULL);
CREATE INDEX observation_finding ON idempotency_gateway.observation USING btree (service, route, verdict, is_refused, began_us);
CREATE INDEX observation_history ON idempotency_gateway.observation USING btree (service, operation_id, began_us) WHERE (operation_id IS NOT NULL);
CREATE INDEX observation_time ON idempotency_gateway.observation USING btree (began_us);
CREATE INDEX operation_attention ON idempotency_gateway.operation USING btree (operation_id) WHERE (attention_us IS NOT NULL);
CREATE INDEX operation_due ON idempotency_gateway.operation USING btree (due_us);
CREATE INDEX operation_sealed ON idempotency_gateway.operation USING btree (sealed_by) WHERE (sealed_by IS NOT NULL);
CREATE UNIQUE INDEX operation_token ON idempotency_gateway.operation USING btree (token);
CREATE INDEX pause_audit_by_time ON idempotency_gateway.pause_audit USING btree (service, at_us);
CREATE INDEX recovery_check ON idempotency_gateway.recovery USING btree (check_us);
CREATE INDEX request_sealed ON idempotency_gateway.request USING btree (key_id);
CREATE INDEX tombstone_end ON idempotency_gateway.tombstone USING btree (((((completed_us / 1000000) + kept_s) / 60)));
CREATE INDEX tombstone_operation ON idempotency_gateway.tombstone USING btree (operation_id);
CREATE INDEX tombstone_sealed ON idempotency_gateway.tombstone USING btree (split_part(encode(substr(resource, 2, 65), 'escape'::text), ':'::text, 1)) WHERE (substr(resource, 1, 1) = '\x01'::bytea);
CREATE INDEX witness_check ON idempotency_gateway.witness USING btree (check_us);
ALTER INDEX idempotency_gateway.response_pkey ATTACH PARTITION idempotency_gateway.response_20785_pkey;
ALTER INDEX idempotency_gateway.response_pkey ATTACH PARTITION idempotency_gateway.response_20786_pkey;
ALTER INDEX idempotency_gateway.response_pkey ATTACH PARTITION idempotency_gateway.response_20787_pkey;
ALTER INDEX idempotency_gateway.response_pkey ATTACH PARTITION idempotency_gateway.response_20788_pkey;
ALTER INDEX idempotency_gateway.response_pkey ATTACH PARTITION idempotency_gateway.response_20789_pkey;
ALTER INDEX idempotency_gateway.response_pkey ATTACH PARTITION idempotency_gateway.response_20790_pkey;
ALTER INDEX idempotency_gateway.response_pkey ATTACH PARTITION idempotency_gateway.response_20791_pkey;
ALTER INDEX idempotency_gateway.response_pkey ATTACH PARTITION idempotency_gateway.response_20792_pkey;
ALTER INDEX idempotency_gateway.response_pkey ATTACH PARTITION idempotency_gateway.response_20793_pkey;
ALTER INDEX idempotency_gateway.response_pkey ATTACH PARTITION idempotency_gateway.response_20794_pkey;
ALTER INDEX idempotency_gateway.response_pkey ATTACH PARTITION idempotency_gateway.response_20795_pkey;
ALTER INDEX idempotency_gateway.response_pkey ATTACH PARTITION idempotency_gateway.response_20796_pkey;
ALTER INDEX idempotency_gateway.response_pkey ATTACH PARTITION idempotency_gateway.response_20797_pkey;
ALTER INDEX idempotency_gateway.response_pkey ATTACH PARTITION idempotency_gateway.response_20804_pkey;
ALTER INDEX idempotency_gateway.response_pkey ATTACH PARTITION idempotency_gateway.response_20811_pkey;
ALTER INDEX idempotency_gateway.response_pkey ATTACH PARTITION idempotency_gateway.response_20818_pkey;
ALTER INDEX idempotency_gateway.response_pkey ATTACH PARTITION idempotency_gateway.response_20825_pkey;
ALTER INDEX idempotency_gateway.response_pkey ATTACH PARTITION idempotency_gateway.response_20832_pkey;
ALTER INDEX idempotency_gateway.response_pkey ATTACH PARTITION idempotency_gateway.response_20839_pkey;
ALTER INDEX idempotency_gateway.response_pkey ATTACH PARTITION idempotency_gateway.response_20846_pkey;
ALTER INDEX idempotency_gateway.response_pkey ATTACH PARTITION idempotency_gateway.response_20853_pkey;
ALTER INDEX idempotency_gateway.response_pkey ATTACH PARTITION idempotency_gateway.response_20860_pkey;
ALTER INDEX idempotency_gateway.response_pkey ATTACH PARTITION idempotency_gateway.response_20888_pkey;
ALTER INDEX idempotency_gateway.response_pkey ATTACH PARTITION idempotency_gateway.response_20916_pkey;
ALTER INDEX idempotency_gateway.response_pkey ATTACH PARTITION idempotency_gateway.response_20944_pkey;
ALTER INDEX idempotency_gateway.response_pkey ATTACH PARTITION idempotency_gateway.response_20972_pkey;
ALTER INDEX idempotency_gateway.response_pkey ATTACH PARTITION idempotency_gateway.response_21000_pkey;
ALTER INDEX idempotency_gateway.response_pkey ATTACH PARTITION idempotency_gateway.response_21028_pkey;
ALTER INDEX idempotency_gateway.response_pkey ATTACH PARTITION idempotency_gateway.response_21056_pkey;
ALTER INDEX idempotency_gateway.response_pkey ATTACH PARTITION idempotency_gateway.response_21084_pkey;
ALTER INDEX idempotency_gateway.response_pkey ATTACH PARTITION idempotency_gateway.response_21112_pkey;
ALTER INDEX idempotency_gateway.response_pkey ATTACH PARTITION idempotency_gateway.response_21140_pkey;
ALTER INDEX idempotency_gateway.response_pkey ATTACH PARTITION idempotency_gateway.response_21168_pkey;
ALTER INDEX idempotency_gateway.response_pkey ATTACH PARTITION idempotency_gateway.response_21196_pkey;
ALTER INDEX idempotency_gateway.response_pkey ATTACH PARTITION idempotency_gateway.response_21224_pkey;
ALTER INDEX idempotency_gateway.response_pkey ATTACH PARTITION idempotency_gateway.response_21252_pkey;
ALTER INDEX idempotency_gateway.response_pkey ATTACH PARTITION idempotency_gateway.response_21280_pkey;
ALTER INDEX idempotency_gateway.response_pkey ATTACH PARTITION idempotency_gateway.response_21308_pkey;
ALTER INDEX idempotency_gateway.response_pkey ATTACH PARTITION idempotency_gateway.response_21336_pkey;
ALTER INDEX idempotency_gateway.response_pkey ATTACH PARTITION idempotency_gateway.response_21364_pkey;
ALTER INDEX idempotency_gateway.response_pkey ATTACH PARTITION idempotency_gateway.response_21392_pkey;
ALTER INDEX idempotency_gateway.response_pkey ATTACH PARTITION idempotency_gateway.response_21420_pkey;
ALTER INDEX idempotency_gateway.response_pkey ATTACH PARTITION idempotency_gateway.response_21448_pkey;
ALTER INDEX idempotency_gateway.response_pkey ATTACH PARTITION idempotency_gateway.response_21476_pkey;
ALTER INDEX idempotency_gateway.response_pkey ATTACH PARTITION idempotency_gateway.response_21504_pkey;
ALTER INDEX idempotency_gateway.response_pkey ATTACH PARTITION idempotency_gateway.response_21532_pkey;
ALTER INDEX idempotency_gateway.response_pkey ATTACH PARTITION idempotency_gateway.response_21840_pkey;
ALTER INDEX idempotency_gateway.response_pkey ATTACH PARTITION idempotency_gateway.response_22204_pkey;
ALTER INDEX idempotency_gateway.response_pkey ATTACH PARTITION idempotency_gateway.response_22568_pkey;
ALTER INDEX idempotency_gateway.response_pkey ATTACH PARTITION idempotency_gateway.response_22932_pkey;
ALTER INDEX idempotency_gateway.response_pkey ATTACH PARTITION idempotency_gateway.response_23296_pkey;
ALTER INDEX idempotency_gateway.response_pkey ATTACH PARTITION idempotency_gateway.response_23660_pkey;
ALTER INDEX idempotency_gateway.response_pkey ATTACH PARTITION idempotency_gateway.response_24024_pkey;
ALTER INDEX idempotency_gateway.response_pkey ATTACH PARTITION idempotency_gateway.response_24388_pkey;
ALTER INDEX idempotency_gateway.response_pkey ATTACH PARTITION idempotency_gateway.response_24752_pkey;
ALTER INDEX idempotency_gateway.response_pkey ATTACH PARTITION idempotency_gateway.response_36400_pkey;
