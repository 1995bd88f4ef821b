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
CREATE TABLE idempotency_gateway.migration (
    version integer NOT NULL,
    name text NOT NULL,
    checksum text DEFAULT ''::text NOT NULL,
    applied_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);
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
    attempts integer NOT NULL,
    drop_day integer,
    version smallint NOT NULL,
    status smallint,
    carries_doubt boolean NOT NULL,
    is_kept boolean DEFAULT false NOT NULL,
    state text NOT NULL,
    last_event text NOT NULL,
    doubt text,
    holder text NOT NULL,
    route text NOT NULL,
    operation text NOT NULL,
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
CREATE TABLE idempotency_gateway.response_20784 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    reason bytea NOT NULL,
    headers bytea NOT NULL,
    body bytea
);
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
ALTER TABLE ONLY idempotency_gateway.response ATTACH PARTITION idempotency_gateway.response_20784 FOR VALUES IN (20784);
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
INSERT INTO idempotency_gateway.delivery VALUES ('ffad008b-f793-85de-8016-562c07b4053e', 'a0d6b493-d5b8-4ae6-9145-6a5db5d07375', 1795684259243328, 1795684259243328, 1795684260234911, 1827220259243328, 0, 260, 1, 0, NULL, NULL, true, false, NULL, 'accepted', 'shop', 'order', 'order', '\x2cfdfcc638acd71e6e7c5c9d89f2a7306de9137de30c4b3d974696061146625f', 'answered_503', NULL);
INSERT INTO idempotency_gateway.epoch VALUES (true, '3d5ce7d9-92e8-4e00-97fa-58e59564dfb2', '00000001', '\x', '', 1);
INSERT INTO idempotency_gateway.gateway VALUES ('37024d7f-86fd-4356-9c6c-9f87ae33ddd7', 'shop', '{charge,order}', 1795684258716665, 315360000000000, 1, '6e0c551d-0afe-43c9-bf61-fc211ad3b057', 'vm', 'dbbd0c81-b95f-45d4-98c6-656b10a0b858', '', 1);
INSERT INTO idempotency_gateway.migration VALUES (1, '0001_operations', '1668ecac8ee2605de7330bc4c5a4dd53ffb2a53daa531105884ebf4f1e74be86', '2026-11-26 09:10:57.965845+00');
INSERT INTO idempotency_gateway.operation VALUES ('1efa8387-21f5-83a7-bea9-c4ac3f5f1f16', 'e3bf498e-2937-4ef5-a168-fd63782e8c23', NULL, 1, 1795684259055845, 1795684259055845, 0, 2111044259145642, 2111044259145642, 1795684259145642, 2111044259145642, NULL, 1, 36400, 1, 201, false, false, 'completed', 'complete', NULL, 'vm:13952:f48d5b65', 'charge', 'charge', '\x2cfdfcc638acd71e6e7c5c9d89f2a7306de9137de30c4b3d974696061146625f', '\xb95d455b5fc690efe0a2afe6ace94cdda261f0c4393997b9e690be0d5eec63ec', NULL, '\xb763ff21c1c48900cdb440e03ce4c020', '\xc08335a2ed84fedb0f3f698bac518236bb56113194f855a2154e5712b1699d08', '\x080c12d4b9899829741e7cc68d818dbf0a610062bfb8ec7444c45d8b2930023a', '', '\x878662386bd19df0a4d76bfb5d8c7bc370b07f5472d46f403360869d', NULL, NULL, NULL, NULL, 'frozen', 'POST - frozen:lErDxgqssZ40/r1E1CWjEf0+iFKEO2dILitadpullkq5Xm4e2bUtR0kzRn0Kg8vSZ2B+y9N/RqNZkaPq', NULL, NULL);
INSERT INTO idempotency_gateway.operation VALUES ('a596fc96-0a32-817d-a73c-6bf10c513eb8', 'eb3498f9-5075-43f4-a55e-5bfed42709e6', NULL, 2, 1795684259164164, 1795684259164164, 0, 0, 2111044259174329, NULL, 2111044264164164, NULL, 1, NULL, 1, NULL, false, false, 'released', 'release', NULL, 'vm:13952:f48d5b65', 'charge', 'charge', '\x2cfdfcc638acd71e6e7c5c9d89f2a7306de9137de30c4b3d974696061146625f', '\x545abad01019b97e48c5dedade40c4faeef7400a3ca7a69627b6864d4cd14b6a', NULL, '\xb763ff21c1c48900cdb440e03ce4c020', '\xc08335a2ed84fedb0f3f698bac518236bb56113194f855a2154e5712b1699d08', '\x080c12d4b9899829741e7cc68d818dbf0a610062bfb8ec7444c45d8b2930023a', '', '\xfe8f56806e9dc1ad7f59524a32bad1b1f46e7b1a4c5624e55c7c5cbe', NULL, NULL, NULL, NULL, 'frozen', 'POST - frozen:SzdPQ7Ycq13e/eMARjRukreXpgsJdp6HJBicrqbfhJVjQSMYLLJggFQqTYIwaCFjEQgxM39oN6b/h+Xj', NULL, NULL);
INSERT INTO idempotency_gateway.operation VALUES ('f69ff997-ed3f-87d3-91aa-1435b869a4b2', '73b9fd84-2092-4225-97ee-49dbcae154de', NULL, 3, 1795684259199551, 1795684259199551, 1795684289199551, 0, 0, NULL, NULL, 1795684259210597, 1, NULL, 1, NULL, false, false, 'in_doubt', 'abandon', 'reset', 'vm:13952:f48d5b65', 'charge', 'charge', '\x2cfdfcc638acd71e6e7c5c9d89f2a7306de9137de30c4b3d974696061146625f', '\x554dad576657d3838e66bf80c1973dfce5ef9cb9aa648b6563ad34121f9e6f99', NULL, '\xb763ff21c1c48900cdb440e03ce4c020', '\xc08335a2ed84fedb0f3f698bac518236bb56113194f855a2154e5712b1699d08', '\x080c12d4b9899829741e7cc68d818dbf0a610062bfb8ec7444c45d8b2930023a', '', '\x38dd993fd2cbcdc1824fa40bfe11a94eb20f2e9ae64edf4cb48b056a', NULL, NULL, NULL, NULL, 'frozen', 'POST - frozen:/5SPmdtWEKBSrasqjNN/Qmbu49GgOfBcEfCtQOtIpYLJjnxqwnB7fqZj9I5EvKJJDQ8o06aXgJifG4QY', NULL, NULL);
INSERT INTO idempotency_gateway.operation VALUES ('e1e61c76-0614-86ff-bf39-8f5964b1cb7b', '68ea8f30-7a3a-46aa-801c-fd0971683b86', NULL, 6, 1795684259281704, 1795684259281704, 1795684289281704, 0, 0, NULL, 2111044264281704, NULL, 1, NULL, 1, NULL, false, false, 'claimed', 'claim', NULL, 'vm:13952:f48d5b65', 'charge', 'charge', '\x2cfdfcc638acd71e6e7c5c9d89f2a7306de9137de30c4b3d974696061146625f', '\x7faf5c80bc41c5fa7e6064df1429277b4723052226d14cfc3bbbb540a5e33977', NULL, '\xb763ff21c1c48900cdb440e03ce4c020', '\xc08335a2ed84fedb0f3f698bac518236bb56113194f855a2154e5712b1699d08', '\x080c12d4b9899829741e7cc68d818dbf0a610062bfb8ec7444c45d8b2930023a', '', '\xe1c93b8a14f439650f26894bc1c70e2dbd0b3dad157aef917065028e', NULL, NULL, NULL, NULL, 'frozen', 'POST - frozen:TGJYZSUwhrfhbYVb/bI63v+pP2djnRTP0o0L1u+6ehpsZpqBMafN7qMIfzG0/KjMW5jEx6gNShRhwJji', NULL, NULL);
INSERT INTO idempotency_gateway.operation VALUES ('e40120c8-d512-87d7-b44d-c83f14f3f9f3', 'f4172944-d41e-4746-b1b2-af0fd882d2fb', NULL, 7, 1795684259288236, 1795684259288236, 1795684289288236, 0, 0, NULL, 2111044264288236, NULL, 1, NULL, 1, NULL, false, false, 'claimed', 'claim', NULL, 'vm:13952:f48d5b65', 'charge', 'charge', '\x2cfdfcc638acd71e6e7c5c9d89f2a7306de9137de30c4b3d974696061146625f', '\xf7d67622d33169e90d2c66efab38d3180386001ca9c2bc122481dc3626e972a2', NULL, '\xb763ff21c1c48900cdb440e03ce4c020', '\xc08335a2ed84fedb0f3f698bac518236bb56113194f855a2154e5712b1699d08', '\x080c12d4b9899829741e7cc68d818dbf0a610062bfb8ec7444c45d8b2930023a', '', '\x2e9dd3abd296e0954f5b9a65be084d18f0f47fcea7b904fcfaecf502', NULL, NULL, NULL, NULL, 'frozen', 'POST - frozen:gCJtMccAwjKyfSsfDlUFzGI7CNlZD6fplVxPsWiXtHllwmXW3NCLu1Uz3zKXYygJL6M8LhKhETOWvGDz', NULL, NULL);
INSERT INTO idempotency_gateway.operation VALUES ('ffad008b-f793-85de-8016-562c07b4053e', 'f3ca7fb2-64d0-4fd4-84c4-f48887eef082', NULL, 5, 1795684259243328, 1795684259260953, 0, 0, 0, NULL, 1827220259243328, NULL, 1, NULL, 1, NULL, false, true, 'accepted', 'postpone', NULL, 'vm:13952:f48d5b65', 'order', 'order', '\x2cfdfcc638acd71e6e7c5c9d89f2a7306de9137de30c4b3d974696061146625f', '\x609fbd65d00f80c4c8f75aebdd3108c4ded494c184bbf087c1cc586696ae81ba', NULL, '\xb763ff21c1c48900cdb440e03ce4c020', '\x3b127e647326a501dc691215262afc7c5b404443d89a001b5ca4ad0e97cdfa79', '\x39175aab2e26dab244f63d4c2c9299239e4e6acf56d3c6f76b9e487be65b68ce', '', '\x85f9cc305a7cf0ba666b65947a110e3ecb794b95a3299e2aa6e40aeb', NULL, NULL, NULL, NULL, 'frozen', 'POST - frozen:O/cFNlzvGLR3h0gOgiASB/+PTMRb9u2GdBCk3Gv4EYHVUR9m7iivWFn9bE3QHlbdBJfNpOTZ+ZvcNZw=', NULL, NULL);
INSERT INTO idempotency_gateway.outbox VALUES ('shop', '\x7b2273657276696365223a2273686f70222c22736f75726365223a2275726e3a6964656d706f74656e63792d676174657761793a73686f70222c226576656e745f62797465735f6d6178223a36353533362c22737562736372697074696f6e73223a5b5d7d');
INSERT INTO idempotency_gateway.recipe VALUES ('shop', 'charge', '\xc4293a9926c43091a5294e47334ed90bf6a5561b5b02f570c40390ea55a22c86', '[{"order": 0, "methods": ["PATCH", "POST"], "host": null, "path": "/charges", "enforced": 1.0}]', true);
INSERT INTO idempotency_gateway.recipe VALUES ('shop', 'order', '\x6692733b03b23631671303df32d8a5632597fe3409de1a0dfe06f789cc8c9ff7', '[{"order": 1, "methods": ["PATCH", "POST"], "host": null, "path": "/orders", "enforced": 1.0}]', true);
INSERT INTO idempotency_gateway.request VALUES ('ffad008b-f793-85de-8016-562c07b4053e', 'a0d6b493-d5b8-4ae6-9145-6a5db5d07375', 'frozen', '\x42591596bafd40af8539245de79af3ba29a39fa1b77cffee2b9173090e4bc809e579ba4b150ca041273083047529b75e05ee5376d977637ff90b7ce4bdb50b0c87aa04632b1e576285e48e68b359fb288173187f34b835eeb83f7f8f02f940fe43357719cf4f0315c024714e1cece6130bf5878e90e0c4faa60e2a468b2843ed080343416d51395862030a216c67567edb35792b4bf95e7bad659a61e9d026b45803c15679d501632f9c365ba967449ddd4e6d820b6f4b56186614974535c71a048355a3e85c1df17768c4e13bc7cdc888a188dcd32fc5c7fdcf63e5f943d8b0e0c63b78f6b0c49c5108546cbb892f6ea94bc8ea4db0a6087ad6f453be0f8913a499af49');
INSERT INTO idempotency_gateway.response_36400 VALUES (1, 36400, '\x', '\x00000002000000080000007701686561646572730166726f7a656e3a09d4b6e5024fdd59c510d0c4bdfbe5de56aba316785f4cfcb4039e6c4f98af68935ebf525a460dc5b694ae1c31555697704d53afa0e242c96bc0cfcbc5a3430632ac98bd875cf118d36b91ce1ebd79fa07d6e072a32ce28427a97668e2cb5be3ebaf91925d4229c2ffab2c4910ac37', '\x0166726f7a656e3a9d8d55f808e254e9942e5f4d5a3c8afff18b449ba57265788dfd7094f0ebc1f80ee8f4d1013211b1');
INSERT INTO idempotency_gateway.turn VALUES ('recovery shop e3b0c44298fc1c14', 'f9a49f42-ad47-4139-b741-420bf2646edb', 1795684274217666);
INSERT INTO idempotency_gateway.turn VALUES ('sweep', 'f9a49f42-ad47-4139-b741-420bf2646edb', 1795684274217666);
INSERT INTO idempotency_gateway.turn VALUES ('tally shop f3f76c9c19d737c2', 'f9a49f42-ad47-4139-b741-420bf2646edb', 1795684274217666);
INSERT INTO idempotency_gateway.upkeep VALUES (true, 0);
INSERT INTO idempotency_gateway.witness VALUES ('7e6fb95f-a4f4-40c8-a1a7-91e17cc4a1f5', 6, 0, 1803460259044022);
INSERT INTO idempotency_gateway.witness VALUES ('43144c65-e74f-4d15-b049-e5666e3bc394', 7, 0, 1803460259130880);
SELECT pg_catalog.setval('idempotency_gateway.audit_entry_seq', 1, false);
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
ALTER TABLE ONLY idempotency_gateway.response_20784
    ADD CONSTRAINT response_20784_pkey PRIMARY KEY (token, drop_day);
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
CREATE INDEX delivery_next ON idempotency_gateway.delivery USING btree (service, operation, next_attempt_us) WHERE ((waits = 'accepted'::text) AND (NOT is_behind));
CREATE INDEX delivery_scope ON idempotency_gateway.delivery USING btree (service, operation, scope_digest) WHERE (waits = 'accepted'::text);
CREATE INDEX delivery_stopped ON idempotency_gateway.delivery USING btree (service, route, stopped_us) WHERE ((stopped_us IS NOT NULL) AND (NOT is_behind));
CREATE INDEX event_dead ON idempotency_gateway.event USING btree (service, sink, event_id) WHERE is_dead;
CREATE INDEX event_due ON idempotency_gateway.event USING btree (service, sink, is_behind, due_us) INCLUDE (since_us) WHERE (NOT is_dead);
CREATE INDEX event_line ON idempotency_gateway.event USING btree (service, sink, line, place) WHERE ((line IS NOT NULL) AND (NOT is_dead));
CREATE INDEX event_sealed ON idempotency_gateway.event USING btree (sealed_by) WHERE (sealed_by IS NOT NULL);
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
CREATE INDEX witness_check ON idempotency_gateway.witness USING btree (check_us);
ALTER INDEX idempotency_gateway.response_pkey ATTACH PARTITION idempotency_gateway.response_20784_pkey;
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
