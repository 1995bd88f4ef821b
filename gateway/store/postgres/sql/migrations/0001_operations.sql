-- One narrow row per operation, responses in another table, and what upkeep has to know.

CREATE SEQUENCE idempotency_gateway.token AS bigint NO CYCLE;

-- Between claim and complete no indexed column changes, so that the update stays on its page and touches no index
-- (heap-only). Therefore no index contains `state` or a time that a completion sets. Instead, there are two columns that a
-- completion normally does not change:
--   due_us        when the clock may next change the record (expire, retire, collect). The claim predicts it from the window
--                 of the last completion of the same operation name; the completion keeps it if it is right within 5 s. Of
--                 an accepted record it is exactly `delivery.deliver_until_us`.
--   attention_us  since when the record is in doubt, its lease is being renewed, or it is dispatched; null for all others.
-- Lapsed claims are found by walking the tokens from where the last walk ended (`upkeep.passed_token`).
CREATE TABLE idempotency_gateway.operation (
    operation_id      uuid     NOT NULL PRIMARY KEY,
    attempt_id        uuid     NOT NULL,
    resolution_id     uuid,
    token             bigint   NOT NULL,
    first_claimed_us  bigint   NOT NULL,
    claimed_us        bigint   NOT NULL,
    lease_until_us    bigint   NOT NULL,
    replay_until_us   bigint   NOT NULL DEFAULT 0,
    remember_until_us bigint   NOT NULL DEFAULT 0,
    completed_us      bigint,
    due_us            bigint,
    attention_us      bigint,
    -- When the doubt began that a takeover carries.
    carried_us        bigint,
    attempts          integer  NOT NULL,
    -- How long the lease was when it was last given.
    lease_us          integer  NOT NULL DEFAULT 0,
    drop_day          integer,
    version           smallint NOT NULL,
    status            smallint,
    -- Whether there is a row in `delivery` and one in `request`.
    is_kept           boolean  NOT NULL DEFAULT false,
    state             text     NOT NULL,
    last_event        text     NOT NULL,
    doubt             text,
    holder            text     NOT NULL,
    route             text     NOT NULL,
    operation         text     NOT NULL,
    -- Null: whose the operation is follows from its id.
    of_service        text,
    scope_digest      bytea    NOT NULL,
    key_digest        bytea    NOT NULL,
    key               text,
    recipe            bytea,
    digest            bytea,
    raw               bytea,
    key_id            text,
    parts             bytea,
    -- The reference to what the operation made, which outlives the response; and a digest of the response's API version.
    resource          bytea,
    api_version       bytea,
    probe_target      bytea,
    probe_host        bytea,
    -- The ids of the keys that anything of the record is encrypted with, in order and separated by a space; null if nothing
    -- is. A completion changes it only if the current key is another one than at the claim.
    sealed_by         text,
    -- The last attempt's request, for people: `METHOD HOST PATH`, empty if it is not known.
    request           text     NOT NULL DEFAULT '',
    request_id        text,
    trace_id          text
) WITH (
    fillfactor = 45,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_insert_scale_factor = 0.1,
    autovacuum_analyze_scale_factor = 0.05
);

CREATE UNIQUE INDEX operation_token ON idempotency_gateway.operation (token);
CREATE INDEX operation_due ON idempotency_gateway.operation (due_us);
-- How many operations use which keys.
CREATE INDEX operation_sealed ON idempotency_gateway.operation (sealed_by) WHERE sealed_by IS NOT NULL;
-- In the order of the pages that operators see.
CREATE INDEX operation_attention ON idempotency_gateway.operation (operation_id) WHERE attention_us IS NOT NULL;

-- Tombstones: the row of a completed operation moves here when its response is over. No operation has a living row in both
-- tables. One that is left from before its key was free again counts for nothing.
--
-- A row has few bytes, because nearly all keys that are remembered are here. What many rows share is in `kind`; of digests
-- there is a part; `kept_s` is for how long after its completion the key is remembered. More columns, or wider ones, would
-- cost eight bytes in each row; null for `resource` costs nothing.
CREATE TABLE idempotency_gateway.tombstone (
    token        bigint  NOT NULL,
    completed_us bigint  NOT NULL,
    kept_s       integer NOT NULL,
    kind         integer NOT NULL,
    operation_id uuid    NOT NULL,
    -- The first 16 bytes of the scope's digest, and the first 8 of each of the two digests of the fingerprint.
    scope        uuid    NOT NULL,
    fingerprint  uuid    NOT NULL,
    resource     bytea
) WITH (
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_insert_scale_factor = 0.1,
    autovacuum_analyze_scale_factor = 0.05
);
CREATE INDEX tombstone_operation ON idempotency_gateway.tombstone (operation_id);
-- By the minute in which they end: many equal values take the room of one.
CREATE INDEX tombstone_end ON idempotency_gateway.tombstone (((completed_us / 1000000 + kept_s) / 60));
-- By the key that the reference is encrypted with.
CREATE INDEX tombstone_sealed ON idempotency_gateway.tombstone
    ((split_part(encode(substr(resource, 2, 65), 'escape'), ':', 1))) WHERE substr(resource, 1, 1) = '\x01'::bytea;

-- What many tombstones have in common. Rows are only added. `digest` is of all others.
CREATE TABLE idempotency_gateway.kind (
    kind        integer  NOT NULL GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    attempts    integer  NOT NULL,
    version     smallint NOT NULL,
    status      smallint NOT NULL,
    service     text     NOT NULL,
    route       text     NOT NULL,
    operation   text     NOT NULL,
    last_event  text     NOT NULL,
    key_id      text     NOT NULL,
    recipe      bytea    NOT NULL,
    api_version bytea    NOT NULL,
    digest      bytea    NOT NULL UNIQUE
);

-- The tombstones as rows of `operation`.
CREATE VIEW idempotency_gateway.narrow AS
SELECT
    t.operation_id, '00000000-0000-0000-0000-000000000000'::uuid AS attempt_id, NULL::uuid AS resolution_id, t.token,
    t.completed_us AS first_claimed_us, t.completed_us AS claimed_us, 0::bigint AS lease_until_us,
    0::bigint AS replay_until_us, t.completed_us + t.kept_s * 1000000::bigint AS remember_until_us, t.completed_us,
    NULL::bigint AS due_us, NULL::bigint AS attention_us, NULL::bigint AS carried_us, k.attempts, 0 AS lease_us,
    NULL::integer AS drop_day, k.version, k.status, false AS is_kept, 'tombstone'::text AS state, k.last_event, NULL::text AS doubt,
    ''::text AS holder, k.route, k.operation, k.service AS of_service, uuid_send(t.scope) AS scope_digest, ''::bytea AS key_digest,
    NULL::text AS key, k.recipe, substr(uuid_send(t.fingerprint), 1, 8) AS digest,
    substr(uuid_send(t.fingerprint), 9) AS raw, k.key_id, NULL::bytea AS parts, t.resource, k.api_version,
    NULL::bytea AS probe_target, NULL::bytea AS probe_host, NULL::text AS sealed_by, ''::text AS request,
    NULL::text AS request_id, NULL::text AS trace_id
FROM idempotency_gateway.tombstone t JOIN idempotency_gateway.kind k ON k.kind = t.kind;

-- Every record: look up an id with LIMIT 1. Where the first table has it, the second is not searched.
CREATE VIEW idempotency_gateway.remembered AS
SELECT
    operation_id, attempt_id, resolution_id, token, first_claimed_us, claimed_us, lease_until_us, replay_until_us,
    remember_until_us, completed_us, due_us, attention_us, carried_us, attempts, lease_us, drop_day, version, status,
    is_kept, state, last_event, doubt, holder, route, operation, of_service, scope_digest, key_digest, key, recipe, digest, raw,
    key_id, parts, resource, api_version, probe_target, probe_host, sealed_by, request, request_id, trace_id
FROM idempotency_gateway.operation
UNION ALL
SELECT * FROM idempotency_gateway.narrow;

-- The responses, found by token and by the day (since 1970, UTC) from which a whole partition is expired. They are never
-- updated, and only a purge deletes single ones: a partition is dropped as a whole.
CREATE TABLE idempotency_gateway.response (
    token    bigint  NOT NULL,
    drop_day integer NOT NULL,
    reason   bytea   NOT NULL,
    headers  bytea   NOT NULL,
    body     bytea,
    PRIMARY KEY (token, drop_day)
) PARTITION BY LIST (drop_day);

-- What is known of a kept request. Whoever writes a row here has locked that of the operation.
--
-- `waits` is 'accepted' or 'dead_letter' while the operation is in that state, and null while an attempt is under way or in
-- doubt, so that the indexes below hold what waits and nothing else. Every accepted request enters and leaves them, so the
-- rows are narrow, and vacuum comes early. `credited_us` is up to when pauses have been added to `deliver_until_us`.
--
-- `lane_rank` and `stopped_us` are those of `core.lane`: the rank is null where no other one of the lane waits for this one.
-- Whoever writes a row of a lane has locked the lane, after the operation.
CREATE TABLE idempotency_gateway.delivery (
    operation_id     uuid    NOT NULL PRIMARY KEY,
    acceptance_id    uuid    NOT NULL,
    accepted_us      bigint  NOT NULL,
    since_us         bigint  NOT NULL,
    next_attempt_us  bigint  NOT NULL,
    deliver_until_us bigint  NOT NULL,
    credited_us      bigint  NOT NULL DEFAULT 0,
    request_bytes    integer NOT NULL,
    answers          integer NOT NULL,
    lane_number      bigint  NOT NULL DEFAULT 0,
    lane_rank        bigint,
    stopped_us       bigint,
    stops_lane       boolean NOT NULL DEFAULT true,
    is_behind        boolean NOT NULL DEFAULT false,
    lane             bytea,
    waits            text,
    service          text    NOT NULL,
    operation        text    NOT NULL,
    route            text    NOT NULL,
    scope_digest     bytea   NOT NULL,
    failure          text,
    reason           text
) WITH (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_insert_scale_factor = 0.1,
    autovacuum_analyze_scale_factor = 0.05
);
CREATE INDEX delivery_next ON idempotency_gateway.delivery (service, operation, route, next_attempt_us)
    WHERE waits = 'accepted' AND NOT is_behind;
CREATE INDEX delivery_end ON idempotency_gateway.delivery (service, operation, deliver_until_us) WHERE waits = 'accepted';
CREATE INDEX delivery_scope ON idempotency_gateway.delivery (service, route, scope_digest) WHERE waits = 'accepted';
CREATE INDEX delivery_dead ON idempotency_gateway.delivery (service) WHERE waits = 'dead_letter';
-- The lines of lanes. Unique, so that no two operations of a lane are under way or in doubt.
CREATE UNIQUE INDEX delivery_lane ON idempotency_gateway.delivery (lane, lane_rank) WHERE lane_rank IS NOT NULL;
-- The heads that stop their lanes.
CREATE INDEX delivery_stopped ON idempotency_gateway.delivery (service, route, stopped_us)
    WHERE stopped_us IS NOT NULL AND NOT is_behind;

-- The kept requests: written once, read once for each attempt, and deleted. They are encrypted, so the server does not try to
-- compress them.
CREATE TABLE idempotency_gateway.request (
    operation_id  uuid  NOT NULL PRIMARY KEY,
    acceptance_id uuid  NOT NULL,
    key_id        text  NOT NULL,
    sealed        bytea NOT NULL
) WITH (
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 1000,
    toast.autovacuum_vacuum_scale_factor = 0.01,
    toast.autovacuum_vacuum_threshold = 1000
);
ALTER TABLE idempotency_gateway.request ALTER COLUMN sealed SET STORAGE EXTERNAL;
CREATE INDEX request_sealed ON idempotency_gateway.request (key_id);

-- Which operations claimed a content, of routes that refuse likely duplicates. Whether one holds it follows from its record, as
-- long as that has this fingerprint. `until_us` ends it where the operation completed; at `check_us` upkeep checks whether the
-- row is still needed. Whoever reads or writes rows of a digest holds its advisory lock (`content_locks`).
CREATE TABLE idempotency_gateway.content (
    digest       bytea  NOT NULL,
    operation_id uuid   NOT NULL,
    until_us     bigint NOT NULL,
    check_us     bigint NOT NULL,
    fingerprint  bytea  NOT NULL,
    PRIMARY KEY (digest, operation_id)
) WITH (
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_insert_scale_factor = 0.1,
    autovacuum_analyze_scale_factor = 0.05
);
CREATE INDEX content_check ON idempotency_gateway.content (check_us);

-- The operation names of which nothing is dispatched, since when, by whom and why. `resumed_us`: when something was last done
-- to end the pause.
-- Here and elsewhere, `sealed_by` is the id of the key that `why`, or an event's response, is encrypted with, and
-- `why_sealed_by` that of an event's `why`; null if it is clear.
CREATE TABLE idempotency_gateway.pause (
    service   text   NOT NULL,
    operation text   NOT NULL,
    since_us  bigint NOT NULL,
    resumed_us bigint,
    who       text   NOT NULL,
    why       text   NOT NULL,
    sealed_by text GENERATED ALWAYS AS (CASE WHEN left(why, 1) = E'\x01' THEN split_part(substr(why, 2), ':', 1) END) STORED,
    PRIMARY KEY (service, operation)
);

-- That operation names were paused and resumed, by whom and why; kept like audits.
CREATE TABLE idempotency_gateway.pause_audit (
    entry      bigint  NOT NULL GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at_us      bigint  NOT NULL,
    is_resumed boolean NOT NULL,
    service    text    NOT NULL,
    operation  text    NOT NULL,
    who        text    NOT NULL,
    why        text    NOT NULL,
    sealed_by  text GENERATED ALWAYS AS (CASE WHEN left(why, 1) = E'\x01' THEN split_part(substr(why, 2), ':', 1) END) STORED
);
CREATE INDEX pause_audit_by_time ON idempotency_gateway.pause_audit (service, at_us);

-- Events that sinks have yet to receive (`core.outbox`), written with their change; they outlive the operation. A relay may
-- publish one from `due_us` on, while nobody's lease lasts: a lease changes no indexed column, and the update stays on its
-- page. `since_us` is the time of the change (`at_us`), or of the last redelivery. Dead ones wait for an operator.
CREATE TABLE idempotency_gateway.event (
    at_us          bigint  NOT NULL,
    since_us       bigint  NOT NULL,
    due_us         bigint  NOT NULL,
    lease_until_us bigint  NOT NULL DEFAULT 0,
    tries          integer NOT NULL DEFAULT 0,
    redeliveries   integer NOT NULL DEFAULT 0,
    is_dead        boolean NOT NULL DEFAULT false,
    service        text    NOT NULL,
    sink           text    NOT NULL,
    event_id       text    NOT NULL,
    type           text    NOT NULL,
    why            text    NOT NULL DEFAULT '',
    content        bytea   NOT NULL,
    response       bytea,
    -- At an ordered sink: the line, the place in it, and whether another event of the line goes first.
    line           bytea,
    place          bigint,
    is_behind      boolean NOT NULL DEFAULT false,
    sealed_by      text GENERATED ALWAYS AS (CASE
        WHEN substr(response, 1, 1) = '\x01'::bytea THEN split_part(encode(substr(response, 2, 65), 'escape'), ':', 1)
    END) STORED,
    why_sealed_by  text GENERATED ALWAYS AS (CASE WHEN left(why, 1) = E'\x01' THEN split_part(substr(why, 2), ':', 1) END) STORED,
    PRIMARY KEY (service, sink, event_id)
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_insert_scale_factor = 0.1,
    autovacuum_analyze_scale_factor = 0.05
);
CREATE INDEX event_due ON idempotency_gateway.event (service, sink, is_behind, due_us) INCLUDE (since_us) WHERE NOT is_dead;
CREATE INDEX event_line ON idempotency_gateway.event (service, sink, line, place) WHERE line IS NOT NULL AND NOT is_dead;
CREATE INDEX event_dead ON idempotency_gateway.event (service, sink, event_id) WHERE is_dead;
CREATE INDEX event_failed ON idempotency_gateway.event (service, sink, due_us) WHERE why <> '' AND NOT is_dead;
CREATE INDEX event_sealed ON idempotency_gateway.event (sealed_by) WHERE sealed_by IS NOT NULL;
CREATE INDEX event_why_sealed ON idempotency_gateway.event (why_sealed_by) WHERE why_sealed_by IS NOT NULL;

-- Which events each service writes (JSON): a sweep writes down what time did to the operations of all of them.
CREATE TABLE idempotency_gateway.outbox (
    service text  NOT NULL PRIMARY KEY,
    content bytea NOT NULL
);

-- Sinks that get nothing until an operator resumes them.
CREATE TABLE idempotency_gateway.suspension (
    service text NOT NULL,
    sink    text NOT NULL,
    why     text NOT NULL,
    sealed_by text GENERATED ALWAYS AS (CASE WHEN left(why, 1) = E'\x01' THEN split_part(substr(why, 2), ':', 1) END) STORED,
    PRIMARY KEY (service, sink)
);

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

-- How the identities of each operation name of a service are made, and which routes lead to it (JSON); whether it is in
-- the last accepted configuration.
CREATE TABLE idempotency_gateway.recipe (
    service    text    NOT NULL,
    operation  text    NOT NULL,
    recipe     bytea   NOT NULL,
    routes     text    NOT NULL,
    is_current boolean NOT NULL,
    PRIMARY KEY (service, operation)
);

-- Which processes serve which operation names of which service, when each was last seen running, and the longest replay window
-- of its responses: partitions are made for all of them.
--
-- One that has a `beat` may grant. A promoted server is believed once each of them has vouched for it; those that ended are
-- vouched for by the notes of their host, if it was not booted again since.
CREATE TABLE idempotency_gateway.gateway (
    gateway_id  uuid   NOT NULL PRIMARY KEY,
    service     text   NOT NULL,
    operations  text[] NOT NULL,
    seen_us     bigint NOT NULL,
    replay_us   bigint NOT NULL DEFAULT 0,
    beat        bigint,
    notes       uuid,
    host        text   NOT NULL DEFAULT '',
    boot        text   NOT NULL DEFAULT '',
    -- The identity of the promoted memory.
    vouched_for text   NOT NULL DEFAULT '',
    -- That of its program.
    level       smallint NOT NULL DEFAULT 1
) WITH (fillfactor = 70);

-- Which gateway does which work of upkeep, by lease.
CREATE TABLE idempotency_gateway.turn (
    name     text   NOT NULL PRIMARY KEY,
    holder   uuid   NOT NULL,
    until_us bigint NOT NULL
) WITH (fillfactor = 20);

-- Where the walk for lapsed claims ended: no claim with this token or a lower one can lapse unseen.
CREATE TABLE idempotency_gateway.upkeep (
    only_row     boolean NOT NULL PRIMARY KEY DEFAULT true CHECK (only_row),
    passed_token bigint  NOT NULL
);
INSERT INTO idempotency_gateway.upkeep (passed_token) VALUES (0);

-- The recovery lease of an operation in doubt: under which token, held until when, and put off until when for background
-- probes. It is no part of the record, because it changes nothing there. Under another token than the record's it means
-- nothing; at `check_us` upkeep checks whether it is still needed.
CREATE TABLE idempotency_gateway.recovery (
    operation_id     uuid    NOT NULL PRIMARY KEY,
    token            bigint  NOT NULL,
    held_until_us    bigint  NOT NULL,
    put_off_until_us bigint  NOT NULL,
    check_us         bigint  NOT NULL,
    tries            integer NOT NULL,
    -- Those of `tries` that were not urgent: the pause grows with them alone.
    background_tries integer NOT NULL DEFAULT 0,
    -- When the last lease was returned, and with which finding; 0 and empty before that.
    asked_us         bigint  NOT NULL DEFAULT 0,
    finding          text    NOT NULL DEFAULT ''
) WITH (fillfactor = 70);
CREATE INDEX recovery_check ON idempotency_gateway.recovery (check_us);

-- Changes made by hand or by probe, in order. An audit outlives the operation: from `keep_until_us` on it is deleted if the
-- record is gone, and kept for longer otherwise.
CREATE TABLE idempotency_gateway.audit (
    operation_id  uuid   NOT NULL,
    entry         bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    at_us         bigint NOT NULL,
    keep_until_us bigint NOT NULL,
    token         bigint NOT NULL,
    event         text   NOT NULL,
    who           text   NOT NULL,
    why           text   NOT NULL,
    sealed_by     text GENERATED ALWAYS AS (CASE WHEN left(why, 1) = E'\x01' THEN split_part(substr(why, 2), ':', 1) END) STORED,
    PRIMARY KEY (operation_id, entry)
);
CREATE UNIQUE INDEX audit_entry ON idempotency_gateway.audit (entry);
CREATE INDEX audit_sealed ON idempotency_gateway.audit (sealed_by) WHERE sealed_by IS NOT NULL;
CREATE INDEX audit_keep ON idempotency_gateway.audit (keep_until_us);

-- Which memory this is, and what gateways wrote down about memories that were lost.
CREATE TABLE idempotency_gateway.epoch (
    only_row boolean NOT NULL PRIMARY KEY DEFAULT true CHECK (only_row),
    -- A new one for each promotion that was found to have lost nothing.
    identity uuid    NOT NULL,
    -- Of the server that the schema was made on; empty where that was not said, and then it is not asked any more.
    system   text    NOT NULL,
    -- On which the memory was accepted last; on a later one, the server was promoted since. Empty like the system.
    timeline text    NOT NULL,
    memo     bytea   NOT NULL,
    -- Changes with each purge and erasure, to invalidate copies; empty before the first.
    generation text  NOT NULL DEFAULT '',
    -- What may be written here, and which programs may do it (`level`).
    level      smallint NOT NULL DEFAULT 1
);
INSERT INTO idempotency_gateway.epoch (identity, system, timeline, memo)
SELECT
    gen_random_uuid(),
    coalesce(idempotency_gateway.server_system(), ''),
    coalesce(idempotency_gateway.server_timeline(), ''),
    '';

-- The witness of each link of a gateway: a number raised by every statement that changes an operation. If the gateway's host
-- noted a higher number, this is an older state of the data. A witness that was not raised between two checks at `check_us`
-- is deleted. Raising it changes no indexed column, and stays on its page.
CREATE TABLE idempotency_gateway.witness (
    link        uuid   NOT NULL PRIMARY KEY,
    number      bigint NOT NULL,
    kept_number bigint NOT NULL,
    check_us    bigint NOT NULL
) WITH (fillfactor = 20);
CREATE INDEX witness_check ON idempotency_gateway.witness (check_us);

-- What was seen of requests on routes that are only observed, and what enforcement would have done with them. No record, and
-- nothing that a claim depends on. `operation_id` is null where the request had no identity.
CREATE TABLE idempotency_gateway.observation (
    entry        uuid    NOT NULL PRIMARY KEY,
    service      text    NOT NULL,
    route        text    NOT NULL,
    operation_id uuid,
    began_us     bigint  NOT NULL,
    content      bytea,
    seen         bytea   NOT NULL,
    verdict      text    NOT NULL,
    is_refused   boolean NOT NULL,
    is_repeat    boolean NOT NULL,
    is_rekeyed   boolean NOT NULL
);
CREATE INDEX observation_history ON idempotency_gateway.observation (service, operation_id, began_us)
    WHERE operation_id IS NOT NULL;
CREATE INDEX observation_content ON idempotency_gateway.observation (service, content, began_us) WHERE content IS NOT NULL;
CREATE INDEX observation_time ON idempotency_gateway.observation (began_us);
CREATE INDEX observation_finding ON idempotency_gateway.observation (service, route, verdict, is_refused, began_us);
