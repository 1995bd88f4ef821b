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
CREATE TABLE idempotency_gateway.activity (
    service text NOT NULL,
    span_us bigint NOT NULL,
    at_us bigint NOT NULL,
    writer bytea NOT NULL,
    until_us bigint NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE idempotency_gateway.audit (
    "row" bigint NOT NULL,
    id bytea NOT NULL,
    at_us bigint NOT NULL,
    event text NOT NULL,
    token bigint NOT NULL,
    who text NOT NULL,
    why text NOT NULL,
    keep_until_us bigint NOT NULL,
    sealed_by text GENERATED ALWAYS AS (
CASE
    WHEN ("left"(why, 1) = ''::text) THEN split_part(substr(why, 2), ':'::text, 1)
    ELSE NULL::text
END) STORED
);
CREATE TABLE idempotency_gateway.epoch (
    one bigint NOT NULL,
    identity text NOT NULL,
    memo bytea NOT NULL,
    generation text DEFAULT ''::text NOT NULL,
    floor bigint DEFAULT 0 NOT NULL,
    ceiling bigint DEFAULT 0 NOT NULL,
    level bigint DEFAULT 1 NOT NULL,
    system text DEFAULT ''::text NOT NULL,
    timeline text DEFAULT ''::text NOT NULL,
    passed_token bigint DEFAULT 0 NOT NULL,
    CONSTRAINT epoch_one_check CHECK ((one = 1))
);
CREATE TABLE idempotency_gateway.operation (
    token bigint NOT NULL,
    first_claimed_us bigint,
    claimed_us bigint,
    expected_us bigint,
    check_us bigint GENERATED ALWAYS AS (
CASE
    WHEN (state = 'claimed'::text) THEN expected_us
    WHEN ((state = 'completed'::text) AND ((expected_us >= due_us) AND (expected_us <= (due_us + 5000000)))) THEN expected_us
    ELSE due_us
END) STORED,
    attempts integer,
    lease_us integer,
    remember_until_us bigint NOT NULL,
    due_us bigint,
    lease_until_us bigint,
    replay_until_us bigint,
    carried_us bigint,
    completed_us bigint,
    version integer NOT NULL,
    status integer,
    body_kept boolean,
    request_kept boolean,
    state text,
    last_event text,
    doubt text,
    resolution_id bytea,
    reason bytea,
    headers bytea,
    api_version bytea,
    resource bytea,
    sealed_by text,
    watched text GENERATED ALWAYS AS (
CASE
    WHEN (state = ANY (ARRAY['in_doubt'::text, 'dead_letter'::text])) THEN state
    WHEN ((state = 'claimed'::text) AND (last_event = 'renew'::text)) THEN 'renewed'::text
    ELSE NULL::text
END) STORED,
    id bytea NOT NULL,
    kind bytea,
    attempt_id bytea,
    holder text,
    fingerprint_recipe bytea,
    fingerprint_digest bytea,
    fingerprint_raw bytea,
    fingerprint_key_id text,
    fingerprint_parts bytea,
    probe_target bytea,
    probe_host bytea,
    route text,
    operation text,
    scope_digest bytea NOT NULL,
    key_digest bytea,
    key text,
    request text DEFAULT ''::text,
    request_id text,
    trace_id text,
    history bytea,
    CONSTRAINT operation_whole CHECK (((kind IS NOT NULL) OR ((state IS NOT NULL) AND (attempt_id IS NOT NULL) AND (last_event IS NOT NULL) AND (holder IS NOT NULL) AND (attempts IS NOT NULL) AND (first_claimed_us IS NOT NULL) AND (claimed_us IS NOT NULL) AND (lease_until_us IS NOT NULL) AND (lease_us IS NOT NULL) AND (replay_until_us IS NOT NULL) AND (body_kept IS NOT NULL) AND (request_kept IS NOT NULL) AND (route IS NOT NULL) AND (operation IS NOT NULL) AND (key_digest IS NOT NULL) AND (request IS NOT NULL))))
)
WITH (fillfactor='45', autovacuum_vacuum_scale_factor='0.05', autovacuum_vacuum_insert_scale_factor='0.1', autovacuum_analyze_scale_factor='0.05');
CREATE VIEW idempotency_gateway.claimed AS
 SELECT o.id,
    o.state,
    o.route,
    o.due_us,
    o.carried_us,
    o.lease_until_us
   FROM ONLY idempotency_gateway.operation o
  WHERE ((o.token > ( SELECT e.passed_token
           FROM idempotency_gateway.epoch e)) AND (o.state = 'claimed'::text) AND (o.watched IS NULL))
UNION ALL
 SELECT o.id,
    o.state,
    o.route,
    o.due_us,
    o.carried_us,
    o.lease_until_us
   FROM ONLY idempotency_gateway.operation o
  WHERE (o.watched = 'renewed'::text);
CREATE TABLE idempotency_gateway.content (
    digest bytea NOT NULL,
    id bytea NOT NULL,
    fingerprint bytea NOT NULL,
    until_us bigint NOT NULL,
    check_us bigint NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0.05', autovacuum_vacuum_insert_scale_factor='0.1', autovacuum_analyze_scale_factor='0.05');
CREATE TABLE idempotency_gateway.delivery (
    "row" bytea NOT NULL,
    service text NOT NULL,
    acceptance_id bytea NOT NULL,
    accepted_us bigint NOT NULL,
    since_us bigint NOT NULL,
    next_attempt_us bigint NOT NULL,
    deliver_until_us bigint NOT NULL,
    request_bytes bigint NOT NULL,
    answers bigint NOT NULL,
    failure text,
    reason text,
    lane bytea,
    lane_number bigint NOT NULL,
    stops_lane boolean NOT NULL,
    is_behind boolean NOT NULL,
    is_accepted boolean NOT NULL,
    lane_rank bigint,
    stopped_us bigint,
    operation text NOT NULL,
    route text NOT NULL,
    scope_digest bytea NOT NULL,
    credited_us bigint DEFAULT 0 NOT NULL
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.01', autovacuum_vacuum_threshold='1000', autovacuum_vacuum_insert_scale_factor='0.1', autovacuum_analyze_scale_factor='0.05');
CREATE TABLE idempotency_gateway.event (
    "row" bytea NOT NULL,
    service text NOT NULL,
    sink text NOT NULL,
    event_id text NOT NULL,
    type text NOT NULL,
    at_us bigint NOT NULL,
    since_us bigint NOT NULL,
    due_us bigint NOT NULL,
    lease_until_us bigint DEFAULT 0 NOT NULL,
    content bytea NOT NULL,
    response bytea,
    tries bigint DEFAULT 0 NOT NULL,
    redeliveries bigint DEFAULT 0 NOT NULL,
    is_dead boolean DEFAULT false NOT NULL,
    why text DEFAULT ''::text NOT NULL,
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
    id bytea NOT NULL,
    service text NOT NULL,
    operations text NOT NULL,
    host text NOT NULL,
    seen_us bigint NOT NULL,
    level bigint NOT NULL,
    replay_us bigint DEFAULT 0 NOT NULL,
    beat bigint,
    notes bytea,
    boot text DEFAULT ''::text NOT NULL,
    vouched_for text DEFAULT ''::text NOT NULL
)
WITH (fillfactor='70');
CREATE TABLE idempotency_gateway.kind (
    kind bytea NOT NULL,
    attempts bigint NOT NULL,
    status bigint NOT NULL,
    kept_us bigint NOT NULL,
    service text NOT NULL,
    route text NOT NULL,
    operation text NOT NULL,
    last_event text NOT NULL,
    fingerprint_key_id text NOT NULL,
    fingerprint_recipe bytea NOT NULL,
    api_version bytea NOT NULL
);
CREATE TABLE idempotency_gateway.migration (
    version integer NOT NULL,
    name text NOT NULL,
    checksum text DEFAULT ''::text NOT NULL,
    applied_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);
CREATE TABLE idempotency_gateway.narrow (
)
INHERITS (idempotency_gateway.operation)
WITH (autovacuum_vacuum_scale_factor='0.05', autovacuum_vacuum_insert_scale_factor='0.1', autovacuum_analyze_scale_factor='0.05');
CREATE TABLE idempotency_gateway.observation (
    entry bytea NOT NULL,
    service text NOT NULL,
    route text NOT NULL,
    id bytea,
    began_us bigint NOT NULL,
    content bytea,
    seen bytea NOT NULL,
    verdict text NOT NULL,
    is_refused boolean NOT NULL,
    is_repeat boolean NOT NULL,
    is_rekeyed boolean NOT NULL
);
CREATE TABLE idempotency_gateway.outbox (
    service text NOT NULL,
    content bytea NOT NULL
);
CREATE TABLE idempotency_gateway.pause (
    service text NOT NULL,
    operation text NOT NULL,
    since_us bigint NOT NULL,
    who text NOT NULL,
    why text NOT NULL,
    resumed_us bigint,
    place_us bigint DEFAULT '9223372036854775807'::bigint NOT NULL,
    place_row bytea NOT NULL,
    sealed_by text GENERATED ALWAYS AS (
CASE
    WHEN ("left"(why, 1) = ''::text) THEN split_part(substr(why, 2), ':'::text, 1)
    ELSE NULL::text
END) STORED
);
CREATE TABLE idempotency_gateway.pause_audit (
    "row" bigint NOT NULL,
    at_us bigint NOT NULL,
    operation text NOT NULL,
    is_resumed boolean NOT NULL,
    who text NOT NULL,
    why text NOT NULL,
    service text NOT NULL,
    sealed_by text GENERATED ALWAYS AS (
CASE
    WHEN ("left"(why, 1) = ''::text) THEN split_part(substr(why, 2), ':'::text, 1)
    ELSE NULL::text
END) STORED
);
CREATE TABLE idempotency_gateway.recipe (
    service text NOT NULL,
    operation text NOT NULL,
    recipe bytea NOT NULL,
    routes text NOT NULL,
    is_current boolean NOT NULL
);
CREATE TABLE idempotency_gateway.recovery (
    id bytea NOT NULL,
    token bigint NOT NULL,
    held_until_us bigint NOT NULL,
    put_off_until_us bigint NOT NULL,
    tries bigint NOT NULL,
    check_us bigint NOT NULL,
    background_tries bigint DEFAULT 0 NOT NULL,
    asked_us bigint DEFAULT 0 NOT NULL,
    finding text DEFAULT ''::text NOT NULL
)
WITH (fillfactor='70');
CREATE TABLE idempotency_gateway.request (
    "row" bytea NOT NULL,
    key_id text NOT NULL,
    sealed bytea NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0.01', autovacuum_vacuum_threshold='1000', toast.autovacuum_vacuum_scale_factor='0.01', toast.autovacuum_vacuum_threshold='1000');
ALTER TABLE ONLY idempotency_gateway.request ALTER COLUMN sealed SET STORAGE EXTERNAL;
CREATE TABLE idempotency_gateway.response (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    body bytea NOT NULL
)
PARTITION BY LIST (drop_day);
CREATE TABLE idempotency_gateway.response_20785 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE idempotency_gateway.response_20786 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE idempotency_gateway.response_20787 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE idempotency_gateway.response_20788 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE idempotency_gateway.response_20789 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE idempotency_gateway.response_20790 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE idempotency_gateway.response_20791 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE idempotency_gateway.response_20792 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE idempotency_gateway.response_20793 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE idempotency_gateway.response_20794 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE idempotency_gateway.response_20795 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE idempotency_gateway.response_20796 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE idempotency_gateway.response_20797 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE idempotency_gateway.response_20804 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE idempotency_gateway.response_20811 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE idempotency_gateway.response_20818 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE idempotency_gateway.response_20825 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE idempotency_gateway.response_20832 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE idempotency_gateway.response_20839 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE idempotency_gateway.response_20846 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE idempotency_gateway.response_20853 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE idempotency_gateway.response_20860 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE idempotency_gateway.response_20888 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE idempotency_gateway.response_20916 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE idempotency_gateway.response_20944 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE idempotency_gateway.response_20972 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE idempotency_gateway.response_21000 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE idempotency_gateway.response_21028 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE idempotency_gateway.response_21056 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE idempotency_gateway.response_21084 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE idempotency_gateway.response_21112 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE idempotency_gateway.response_21140 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE idempotency_gateway.response_21168 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE idempotency_gateway.response_21196 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE idempotency_gateway.response_21224 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE idempotency_gateway.response_21252 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE idempotency_gateway.response_21280 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE idempotency_gateway.response_21308 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE idempotency_gateway.response_21336 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE idempotency_gateway.response_21364 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE idempotency_gateway.response_21392 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE idempotency_gateway.response_21420 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE idempotency_gateway.response_21448 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE idempotency_gateway.response_21476 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE idempotency_gateway.response_21504 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE idempotency_gateway.response_21532 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE idempotency_gateway.response_21840 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE idempotency_gateway.response_22204 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE idempotency_gateway.response_22568 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE idempotency_gateway.response_22932 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE idempotency_gateway.response_23296 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE idempotency_gateway.response_23660 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE idempotency_gateway.response_24024 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE idempotency_gateway.response_24388 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE idempotency_gateway.response_24752 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE idempotency_gateway.response_36400 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    body bytea NOT NULL
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
    holder bytea NOT NULL,
    until_us bigint NOT NULL
)
WITH (fillfactor='20');
CREATE TABLE idempotency_gateway.witness (
    link bytea NOT NULL,
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
ALTER TABLE ONLY idempotency_gateway.narrow ALTER COLUMN request SET DEFAULT ''::text;
INSERT INTO idempotency_gateway.delivery VALUES ('\xffad008bf79385de8016562c07b4053e', 'shop', '\x0acbb21dc15046b1bd1c037878fe429a', 1795815159936543, 1795815159936543, 1795815159936543, 1827351159936543, 260, 0, NULL, NULL, NULL, 0, true, false, true, NULL, NULL, 'order', 'order', '\x2cfdfcc638acd71e6e7c5c9d89f2a7306de9137de30c4b3d974696061146625f', 0);
INSERT INTO idempotency_gateway.epoch VALUES (1, 'd9dff22d-0dd9-4d30-95ac-82b259a0d952', '\x', '', 0, 0, 1, '7712967374295766365', '00000001', 0);
INSERT INTO idempotency_gateway.gateway VALUES ('\x2b421cf5a7c14c59a38df7df0c001b1c', 'shop', '["charge", "order"]', 'vm', 1795815159827783, 1, 315360000000000, 1, '\x740d94d562f0418b94b06adfcb827ae8', 'ec87c132-b430-4a76-af54-85aeb8f3d7a9', '');
INSERT INTO idempotency_gateway.migration VALUES (1, '0001_operations', 'a93a4aceb54c6dbbb81404396e3cb336679e6204f0882dd785329b194d9ce099', '2026-11-27 21:32:39.732936+00');
INSERT INTO idempotency_gateway.operation VALUES (1, 1795815159869640, 1795815159869640, 1795901564869640, DEFAULT, 1, 0, 2111175159900326, 2111175159900326, 0, 2111175159900326, NULL, 1795815159900326, 1, 201, true, false, 'completed', 'complete', NULL, NULL, '\x', '\x00000002000000080000007701686561646572730166726f7a656e3a4377745aa08d9d1f92423c459e24e5a8459030efab8491563cb9999574bc0205a714ab4f8ec127db1f00852871fde4a1aeae114e861e149144bfa1f19efaf9a33e93b8885da0287321890cf89e3a4cc862b9b402d8f772ec0dcb33113920bd2f16c2b6d4f48071bfd6a4fcc48b24af', NULL, NULL, 'frozen', DEFAULT, '\x1efa838721f583a7bea9c4ac3f5f1f16', NULL, '\xd2f6a5249cf344e093bb732604fa281a', 'vm:26046:c6a00e9c', '\x047f1576f4e385e9b1f940e3f2413086', '\x96bb50019985cef293a28869b5ce2befd32e2b603819fab784310186d31c6cf0', '\x080c12d4b9899829741e7cc68d818dbf0a610062bfb8ec7444c45d8b2930023a', '', '\xfb512062fb616042a491bff9f160f89300000000000000009a012a319756a147', NULL, NULL, 'charge', 'charge', '\x2cfdfcc638acd71e6e7c5c9d89f2a7306de9137de30c4b3d974696061146625f', '\xb95d455b5fc690efe0a2afe6ace94cdda261f0c4393997b9e690be0d5eec63ec', NULL, 'POST - frozen:otpaf2CQsO8rgnKzVY80Dfy7VbeiPSKlfri5NjqXWfR1QluvYQAQOVJc8RjS1JoONxcURRl7f/JqwYRt', NULL, NULL, NULL);
INSERT INTO idempotency_gateway.operation VALUES (2, 1795815159908877, 1795815159908877, 2111175164908877, DEFAULT, 1, 0, 2111175159917248, 2111175159917248, 0, 0, NULL, NULL, 1, NULL, false, false, 'released', 'release', NULL, NULL, NULL, NULL, NULL, NULL, 'frozen', DEFAULT, '\xa596fc960a32817da73c6bf10c513eb8', NULL, '\xb37fbbe5f6a6478e8a12cb17f4b840bc', 'vm:26046:c6a00e9c', '\x047f1576f4e385e9b1f940e3f2413086', '\x96bb50019985cef293a28869b5ce2befd32e2b603819fab784310186d31c6cf0', '\x080c12d4b9899829741e7cc68d818dbf0a610062bfb8ec7444c45d8b2930023a', '', '\x52738655a808ada04c5b8e9e66664fe900000000000000008d8d9700ac6d1ecd', NULL, NULL, 'charge', 'charge', '\x2cfdfcc638acd71e6e7c5c9d89f2a7306de9137de30c4b3d974696061146625f', '\x545abad01019b97e48c5dedade40c4faeef7400a3ca7a69627b6864d4cd14b6a', NULL, 'POST - frozen:soorvloD7SqSBtf4L7P83S0VXnJFme1r9WFzs9nrPijkfDHm+UlGd5WW2ZqDgbnbLPmAwAfXX5NSPxAk', NULL, NULL, '\x5b302c5b2272656c65617365222c313739353831353135393931373234382c322c22616e7377657265645f353033222c313739353831353135393930383837372c22766d3a32363034363a6336613030653963222c22504f5354225d5d');
INSERT INTO idempotency_gateway.operation VALUES (3, 1795815159925923, 1795815159925923, 2111175164925923, DEFAULT, 1, 30000000, 0, NULL, 1795815159929545, 0, NULL, NULL, 1, NULL, false, false, 'in_doubt', 'abandon', 'reset', NULL, NULL, NULL, NULL, NULL, 'frozen', DEFAULT, '\xf69ff997ed3f87d391aa1435b869a4b2', NULL, '\x7eedb8fc844e48798f0dd629556243b0', 'vm:26046:c6a00e9c', '\x047f1576f4e385e9b1f940e3f2413086', '\x96bb50019985cef293a28869b5ce2befd32e2b603819fab784310186d31c6cf0', '\x080c12d4b9899829741e7cc68d818dbf0a610062bfb8ec7444c45d8b2930023a', '', '\x52b2fa5ffc69a20f1b0bd87e499ad2f200000000000000001bfcf3fe54daf01b', NULL, NULL, 'charge', 'charge', '\x2cfdfcc638acd71e6e7c5c9d89f2a7306de9137de30c4b3d974696061146625f', '\x554dad576657d3838e66bf80c1973dfce5ef9cb9aa648b6563ad34121f9e6f99', NULL, 'POST - frozen:XpU1VT8gExHY7CeJByiApn9DlKZNvn/7Q1NRTmZvXDFOhEASuI/iHbrTKXjqugAJfcpCRP/l6Rgn6SKc', NULL, NULL, '\x5b302c5b226162616e646f6e222c313739353831353135393932393534352c332c227265736574222c313739353831353135393932353932332c22766d3a32363034363a6336613030653963222c22504f5354225d5d');
INSERT INTO idempotency_gateway.operation VALUES (4, 1795815159936543, 1795815159936543, NULL, DEFAULT, 0, 0, 0, 1827351159936543, 0, 0, NULL, NULL, 1, NULL, false, true, 'accepted', 'accept', NULL, NULL, NULL, NULL, NULL, NULL, 'frozen', DEFAULT, '\xffad008bf79385de8016562c07b4053e', NULL, '\x0acbb21dc15046b1bd1c037878fe429a', '', '\x047f1576f4e385e9b1f940e3f2413086', '\xc5603ef6b1d64f935ba6fd954c2f091854857827161294053d73fe158d709991', '\x39175aab2e26dab244f63d4c2c9299239e4e6acf56d3c6f76b9e487be65b68ce', '', '\x9e18a38f897bbb8aa0bb98b8a2ecb04400000000000000007ad3f4abbb7e5639', NULL, NULL, 'order', 'order', '\x2cfdfcc638acd71e6e7c5c9d89f2a7306de9137de30c4b3d974696061146625f', '\x609fbd65d00f80c4c8f75aebdd3108c4ded494c184bbf087c1cc586696ae81ba', NULL, 'POST - frozen:JQoHSF8yLCCs0otmmeyRpVr5q5wf1mRCgPk2aU4MnOwgSsaS1gdEgxSPNhaeFWGiLsMlWSe3K0k2byU=', NULL, NULL, NULL);
INSERT INTO idempotency_gateway.operation VALUES (6, 1795815159943675, 1795815159943675, 2111175164943675, DEFAULT, 1, 30000000, 0, 1795815189943675, 1795815189943675, 0, NULL, NULL, 1, NULL, false, false, 'claimed', 'claim', NULL, NULL, NULL, NULL, NULL, NULL, 'frozen', DEFAULT, '\xe1e61c76061486ffbf398f5964b1cb7b', NULL, '\xe09c7ced661945d293aca9d9fdc797e7', 'vm:26046:c6a00e9c', '\x047f1576f4e385e9b1f940e3f2413086', '\x96bb50019985cef293a28869b5ce2befd32e2b603819fab784310186d31c6cf0', '\x080c12d4b9899829741e7cc68d818dbf0a610062bfb8ec7444c45d8b2930023a', '', '\x7008695abf2d539e81df1ad0025f020700000000000000007ee0fde1048c1ff6', NULL, NULL, 'charge', 'charge', '\x2cfdfcc638acd71e6e7c5c9d89f2a7306de9137de30c4b3d974696061146625f', '\x7faf5c80bc41c5fa7e6064df1429277b4723052226d14cfc3bbbb540a5e33977', NULL, 'POST - frozen:bzactCDQoLQ/oJP6nyuWY4CGmNf1+nry2PiQB6ijBJBWBc8TCEkSv9qA/wf1OfSO1n2CAxZ+PpuiIE7/', NULL, NULL, NULL);
INSERT INTO idempotency_gateway.operation VALUES (7, 1795815159943675, 1795815159943675, 2111175164943675, DEFAULT, 1, 30000000, 0, 1795815189943675, 1795815189943675, 0, NULL, NULL, 1, NULL, false, false, 'claimed', 'claim', NULL, NULL, NULL, NULL, NULL, NULL, 'frozen', DEFAULT, '\xe40120c8d51287d7b44dc83f14f3f9f3', NULL, '\xfa678bfa7e004619b5267344a8866a0b', 'vm:26046:c6a00e9c', '\x047f1576f4e385e9b1f940e3f2413086', '\x96bb50019985cef293a28869b5ce2befd32e2b603819fab784310186d31c6cf0', '\x080c12d4b9899829741e7cc68d818dbf0a610062bfb8ec7444c45d8b2930023a', '', '\x52463e79b00d54d5294e6a611c597f1a00000000000000009ca65adbd6c84567', NULL, NULL, 'charge', 'charge', '\x2cfdfcc638acd71e6e7c5c9d89f2a7306de9137de30c4b3d974696061146625f', '\xf7d67622d33169e90d2c66efab38d3180386001ca9c2bc122481dc3626e972a2', NULL, 'POST - frozen:pizPPE+93okWLMhGW6yjlxkG3exsKAlDSh3sKr2OxKmLBm5pQ4HwfY0WgNZUoX14JGYVt+K4MPkcIkUl', NULL, NULL, NULL);
INSERT INTO idempotency_gateway.outbox VALUES ('shop', '\x7b2273657276696365223a2273686f70222c22736f75726365223a2275726e3a6964656d706f74656e63792d676174657761793a73686f70222c226576656e745f62797465735f6d6178223a36353533362c22737562736372697074696f6e73223a5b5d7d');
INSERT INTO idempotency_gateway.recipe VALUES ('shop', 'charge', '\xc4293a9926c43091a5294e47334ed90bf6a5561b5b02f570c40390ea55a22c86', '[{"order": 0, "methods": ["PATCH", "POST"], "host": null, "path": "/charges", "enforced": 1.0, "fingerprint_keys": {}}]', true);
INSERT INTO idempotency_gateway.recipe VALUES ('shop', 'order', '\x6692733b03b23631671303df32d8a5632597fe3409de1a0dfe06f789cc8c9ff7', '[{"order": 1, "methods": ["PATCH", "POST"], "host": null, "path": "/orders", "enforced": 1.0, "fingerprint_keys": {}}]', true);
INSERT INTO idempotency_gateway.request VALUES ('\xffad008bf79385de8016562c07b4053e', 'frozen', '\x84f8375c0975b5f4f2b38060d78efe2136c806325593cde1670c1e6e0715fdadbc6647c740219d052f3845bf4338ad8b1e55d554500a0759c9a93b7f8296960f293b607cb171a6bf1290f0ea6a780c2d9f2150d0b658fc294bec4364d45fac8bac52299f9b128937f256c0440914993af4661ef0a8e146435eaa63cd26a6a82bf06044e22cfe70197dd9995c36a88c1d77ac29938bbf4b6608f61c999128f1a92df821b41b754ad3e69cbde80c4ab6236cbd42be472afdc09a3d2966c4f3f4043fb186474ffc8bd301d1693694b2841beb626e0ec5ce8a4029225568c6612024386aaaaac300aae8279a074bb393db3811fd4636e1a2fafb9be46290c15d2ef1c823dbfb');
INSERT INTO idempotency_gateway.response_36400 VALUES (1, 36400, '\x0166726f7a656e3a2619b112704bbc40d30e8e9dc9592985b528ea84a3c28ed4bc3916172f4093a4c79b72636b110823');
INSERT INTO idempotency_gateway.turn VALUES ('recovery shop e3b0c44298fc1c14', '\xe3080d376be745568a01f44a9feb6dc7', 1795815174840679);
INSERT INTO idempotency_gateway.turn VALUES ('sweep', '\xe3080d376be745568a01f44a9feb6dc7', 1795815174840679);
INSERT INTO idempotency_gateway.turn VALUES ('tally shop f3f76c9c19d737c2', '\xe3080d376be745568a01f44a9feb6dc7', 1795815174840679);
INSERT INTO idempotency_gateway.witness VALUES ('\x7aef5b1283d6475d93051cf2fd3cf966', 5, 0, 1803591159896313);
INSERT INTO idempotency_gateway.witness VALUES ('\x1203fdf7aa584313b5e8b712c54af38b', 5, 0, 1803591159867227);
SELECT pg_catalog.setval('idempotency_gateway.token', 33, true);
ALTER TABLE ONLY idempotency_gateway.activity
    ADD CONSTRAINT activity_pkey PRIMARY KEY (service, span_us, at_us, writer);
ALTER TABLE ONLY idempotency_gateway.audit
    ADD CONSTRAINT audit_pkey PRIMARY KEY ("row");
ALTER TABLE ONLY idempotency_gateway.content
    ADD CONSTRAINT content_pkey PRIMARY KEY (digest, id);
ALTER TABLE ONLY idempotency_gateway.delivery
    ADD CONSTRAINT delivery_pkey PRIMARY KEY ("row");
ALTER TABLE ONLY idempotency_gateway.epoch
    ADD CONSTRAINT epoch_pkey PRIMARY KEY (one);
ALTER TABLE ONLY idempotency_gateway.event
    ADD CONSTRAINT event_pkey PRIMARY KEY ("row");
ALTER TABLE ONLY idempotency_gateway.gateway
    ADD CONSTRAINT gateway_pkey PRIMARY KEY (id);
ALTER TABLE ONLY idempotency_gateway.kind
    ADD CONSTRAINT kind_pkey PRIMARY KEY (kind);
ALTER TABLE ONLY idempotency_gateway.migration
    ADD CONSTRAINT migration_pkey PRIMARY KEY (version);
ALTER TABLE ONLY idempotency_gateway.narrow
    ADD CONSTRAINT narrow_pkey PRIMARY KEY (id);
ALTER TABLE ONLY idempotency_gateway.observation
    ADD CONSTRAINT observation_pkey PRIMARY KEY (entry);
ALTER TABLE ONLY idempotency_gateway.operation
    ADD CONSTRAINT operation_pkey PRIMARY KEY (id);
ALTER TABLE ONLY idempotency_gateway.outbox
    ADD CONSTRAINT outbox_pkey PRIMARY KEY (service);
ALTER TABLE ONLY idempotency_gateway.pause_audit
    ADD CONSTRAINT pause_audit_pkey PRIMARY KEY ("row");
ALTER TABLE ONLY idempotency_gateway.pause
    ADD CONSTRAINT pause_pkey PRIMARY KEY (service, operation);
ALTER TABLE ONLY idempotency_gateway.recipe
    ADD CONSTRAINT recipe_pkey PRIMARY KEY (service, operation);
ALTER TABLE ONLY idempotency_gateway.recovery
    ADD CONSTRAINT recovery_pkey PRIMARY KEY (id);
ALTER TABLE ONLY idempotency_gateway.request
    ADD CONSTRAINT request_pkey PRIMARY KEY ("row");
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
ALTER TABLE ONLY idempotency_gateway.witness
    ADD CONSTRAINT witness_pkey PRIMARY KEY (link);
CREATE INDEX activity_until ON idempotency_gateway.activity USING btree (until_us);
CREATE INDEX audit_keep ON idempotency_gateway.audit USING btree (keep_until_us);
CREATE INDEX audit_operation ON idempotency_gateway.audit USING btree (id);
CREATE INDEX audit_sealed ON idempotency_gateway.audit USING btree (sealed_by) WHERE (sealed_by IS NOT NULL);
CREATE INDEX content_check ON idempotency_gateway.content USING btree (check_us);
CREATE INDEX delivery_age ON idempotency_gateway.delivery USING btree (service, route, accepted_us) WHERE is_accepted;
CREATE INDEX delivery_dead ON idempotency_gateway.delivery USING btree (service, route, reason) WHERE (reason IS NOT NULL);
CREATE INDEX delivery_due ON idempotency_gateway.delivery USING btree (service, operation, route, next_attempt_us, deliver_until_us) WHERE (is_accepted AND (NOT is_behind));
CREATE INDEX delivery_end ON idempotency_gateway.delivery USING btree (service, operation, deliver_until_us) WHERE is_accepted;
CREATE UNIQUE INDEX delivery_lane ON idempotency_gateway.delivery USING btree (lane, lane_rank) WHERE (lane_rank IS NOT NULL);
CREATE INDEX delivery_number ON idempotency_gateway.delivery USING btree (lane, lane_number) WHERE (lane IS NOT NULL);
CREATE INDEX delivery_scope ON idempotency_gateway.delivery USING btree (service, route, scope_digest, deliver_until_us) WHERE is_accepted;
CREATE INDEX delivery_stopped ON idempotency_gateway.delivery USING btree (service, route, stopped_us) WHERE ((stopped_us IS NOT NULL) AND (NOT is_behind));
CREATE INDEX event_dead ON idempotency_gateway.event USING btree (service, sink, event_id) WHERE is_dead;
CREATE INDEX event_due ON idempotency_gateway.event USING btree (service, sink, is_behind, due_us, since_us) WHERE (NOT is_dead);
CREATE INDEX event_failed ON idempotency_gateway.event USING btree (service, sink, due_us) WHERE ((why <> ''::text) AND (NOT is_dead));
CREATE UNIQUE INDEX event_identity ON idempotency_gateway.event USING btree (event_id, sink);
CREATE INDEX event_line ON idempotency_gateway.event USING btree (service, sink, line, place) WHERE ((line IS NOT NULL) AND (NOT is_dead));
CREATE INDEX event_sealed ON idempotency_gateway.event USING btree (sealed_by) WHERE (sealed_by IS NOT NULL);
CREATE INDEX event_why_sealed ON idempotency_gateway.event USING btree (why_sealed_by) WHERE (why_sealed_by IS NOT NULL);
CREATE INDEX narrow_end ON idempotency_gateway.narrow USING btree (((remember_until_us / 60000000)));
CREATE INDEX narrow_sealed ON idempotency_gateway.narrow USING btree (sealed_by) WHERE (sealed_by IS NOT NULL);
CREATE INDEX observation_content ON idempotency_gateway.observation USING btree (service, content, began_us) WHERE (content IS NOT NULL);
CREATE INDEX observation_finding ON idempotency_gateway.observation USING btree (service, route, verdict, is_refused, began_us);
CREATE INDEX observation_history ON idempotency_gateway.observation USING btree (service, id, began_us) WHERE (id IS NOT NULL);
CREATE INDEX observation_time ON idempotency_gateway.observation USING btree (began_us);
CREATE INDEX operation_check ON idempotency_gateway.operation USING btree (check_us) WHERE (check_us IS NOT NULL);
CREATE INDEX operation_sealed ON idempotency_gateway.operation USING btree (sealed_by) WHERE (sealed_by IS NOT NULL);
CREATE UNIQUE INDEX operation_token ON idempotency_gateway.operation USING btree (token);
CREATE INDEX operation_watched ON idempotency_gateway.operation USING btree (watched, id) WHERE (watched IS NOT NULL);
CREATE INDEX pause_audit_by_time ON idempotency_gateway.pause_audit USING btree (service, at_us);
CREATE INDEX recovery_check ON idempotency_gateway.recovery USING btree (check_us);
CREATE INDEX request_sealed ON idempotency_gateway.request USING btree (key_id);
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
