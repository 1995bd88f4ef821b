-- The first schema. One row per operation; the response body and the kept request are in other tables. Times are microseconds of
-- the store's clock, digests and ids are bytes, states and events are the values of the table. `version` is that of the row
-- format: a program that does not know it leaves the row alone. Each statement may be repeated, and no table needs a sequence.
-- Of a line with `sqlite:`, SQLite has what stands behind that. Its tables that have no `row` are in the order of their key.
CREATE TABLE IF NOT EXISTS operation (
    -- Those that a completion leaves as they are come first and last: a log then leaves them out of an update.
    token BIGINT NOT NULL,
    first_claimed_us BIGINT,
    claimed_us BIGINT,
    --postgres: expected_us BIGINT,
    --postgres: check_us BIGINT GENERATED ALWAYS AS (CASE
    --postgres:     WHEN state = 'claimed' THEN expected_us
    --postgres:     WHEN state = 'completed' AND expected_us BETWEEN due_us AND due_us + 5000000 THEN expected_us
    --postgres:     ELSE due_us
    --postgres: END) STORED,
    attempts INTEGER,
    -- How long the lease was when it was last given.
    lease_us INTEGER,
    remember_until_us BIGINT NOT NULL,
    -- When the clock next changes the state; NULL if it never does.
    due_us BIGINT,
    lease_until_us BIGINT,
    replay_until_us BIGINT,
    carried_us BIGINT,
    completed_us BIGINT,
    version INTEGER NOT NULL,
    -- The response without its body; NULL when there is none. `body_kept`: the body has to be in `response`.
    status INTEGER,
    body_kept BOOLEAN,
    -- Whether the request is kept: then `delivery` and `request` have a row with this id.
    request_kept BOOLEAN,
    state TEXT,
    last_event TEXT,
    doubt TEXT,
    resolution_id BYTEA,
    reason BYTEA,
    headers BYTEA,
    -- A digest of the version of the API that the response is in.
    api_version BYTEA,
    -- The reference to what the operation made, in UTF-8. It outlives the response.
    resource BYTEA,
    -- The ids of the keys that anything of the record is encrypted with, in order and separated by a space; NULL if nothing is.
    sealed_by TEXT,
    --postgres: watched TEXT GENERATED ALWAYS AS (CASE
    --postgres:     WHEN state IN ('in_doubt', 'dead_letter') THEN state
    --postgres:     WHEN state = 'claimed' AND last_event = 'renew' THEN 'renewed'
    --postgres: END) STORED,
    id BYTEA NOT NULL PRIMARY KEY, --sqlite: row INTEGER PRIMARY KEY, id BLOB NOT NULL UNIQUE,
    kind BYTEA,
    attempt_id BYTEA,
    holder TEXT,
    fingerprint_recipe BYTEA,
    fingerprint_digest BYTEA,
    fingerprint_raw BYTEA,
    fingerprint_key_id TEXT,
    fingerprint_parts BYTEA,
    -- Where to probe the outcome, as given by the last claim; both or neither.
    probe_target BYTEA,
    probe_host BYTEA,
    route TEXT,
    operation TEXT,
    scope_digest BYTEA NOT NULL,
    key_digest BYTEA,
    key TEXT,
    -- The last attempt's request, for people: `METHOD HOST PATH`, empty if it is not known.
    request TEXT DEFAULT '',
    request_id TEXT,
    trace_id TEXT,
    -- What the other columns tell no more, for people (`core.operation`); NULL if there is nothing.
    history BYTEA,
    -- Only a tombstone may have a kind. It has given up what the kind has, and what is needed no more (`rows.encode_tombstone`).
    CONSTRAINT operation_whole CHECK (
        kind IS NOT NULL
        OR state IS NOT NULL AND attempt_id IS NOT NULL AND last_event IS NOT NULL AND holder IS NOT NULL AND attempts IS NOT NULL
        AND first_claimed_us IS NOT NULL AND claimed_us IS NOT NULL AND lease_until_us IS NOT NULL AND lease_us IS NOT NULL
        AND replay_until_us IS NOT NULL AND body_kept IS NOT NULL AND request_kept IS NOT NULL AND route IS NOT NULL
        AND operation IS NOT NULL AND key_digest IS NOT NULL AND request IS NOT NULL
    )
);

-- What many tombstones have in common. `kind` is the beginning of a digest of the rest. Rows are only added.
CREATE TABLE IF NOT EXISTS kind (
    kind BYTEA NOT NULL PRIMARY KEY,
    attempts BIGINT NOT NULL,
    status BIGINT NOT NULL,
    -- For how long a key is remembered after the completion.
    kept_us BIGINT NOT NULL,
    service TEXT NOT NULL,
    route TEXT NOT NULL,
    operation TEXT NOT NULL,
    last_event TEXT NOT NULL,
    fingerprint_key_id TEXT NOT NULL,
    fingerprint_recipe BYTEA NOT NULL,
    api_version BYTEA NOT NULL
);

-- What the sweep reads, and lapsed claims that are not yet swept.
CREATE INDEX IF NOT EXISTS operation_due ON operation (state, due_us) WHERE due_us IS NOT NULL;
-- Narrow tombstones by the minute in which they end: equal entries take the room of one.
CREATE INDEX IF NOT EXISTS operation_end ON operation ((remember_until_us / 60000000)) WHERE kind IS NOT NULL;

-- What an operator has to resolve, in the order of its pages. Other operations are never in it.
CREATE INDEX IF NOT EXISTS operation_stopped ON operation (state, id, route, lease_until_us, carried_us) WHERE state IN ('in_doubt', 'dead_letter');

-- How many operations use which keys.
CREATE INDEX IF NOT EXISTS operation_sealed ON operation (sealed_by) WHERE sealed_by IS NOT NULL;

CREATE TABLE IF NOT EXISTS response (
    row BYTEA NOT NULL PRIMARY KEY,
    body BYTEA NOT NULL
);

-- What a record knows of its kept request, from the acceptance until the outcome is known. Names and digest are copied from
-- the operation for the indexes. `is_accepted`: it waits for an attempt. `reason` is set for dead letters alone. The time of
-- pauses until `credited_us` was added to `deliver_until_us`.
-- `lane_rank` and `stopped_us` are those of `core.lane`: the rank is null where no other one of the lane waits for this one.
CREATE TABLE IF NOT EXISTS delivery (
    row BYTEA NOT NULL PRIMARY KEY,
    service TEXT NOT NULL,
    acceptance_id BYTEA NOT NULL,
    accepted_us BIGINT NOT NULL,
    since_us BIGINT NOT NULL,
    next_attempt_us BIGINT NOT NULL,
    deliver_until_us BIGINT NOT NULL,
    request_bytes BIGINT NOT NULL,
    answers BIGINT NOT NULL,
    failure TEXT,
    reason TEXT,
    lane BYTEA,
    lane_number BIGINT NOT NULL,
    stops_lane BOOLEAN NOT NULL,
    is_behind BOOLEAN NOT NULL,
    is_accepted BOOLEAN NOT NULL,
    lane_rank BIGINT,
    stopped_us BIGINT,
    operation TEXT NOT NULL,
    route TEXT NOT NULL,
    scope_digest BYTEA NOT NULL,
    credited_us BIGINT NOT NULL DEFAULT 0
);

-- What workers ask for, what counts against the limit of a scope, what a pause keeps from expiring, and the oldest of a
-- route. All of them contain only what waits for an attempt; the first one nothing that waits for its turn in a lane.
CREATE INDEX IF NOT EXISTS delivery_due ON delivery (service, operation, route, next_attempt_us, deliver_until_us)
WHERE is_accepted AND NOT is_behind;
CREATE INDEX IF NOT EXISTS delivery_scope ON delivery (service, route, scope_digest, deliver_until_us) WHERE is_accepted;
CREATE INDEX IF NOT EXISTS delivery_end ON delivery (service, operation, deliver_until_us) WHERE is_accepted;
CREATE INDEX IF NOT EXISTS delivery_age ON delivery (service, route, accepted_us) WHERE is_accepted;
-- The lines of lanes. Unique, so that no two operations of a lane are under way or in doubt.
CREATE UNIQUE INDEX IF NOT EXISTS delivery_lane ON delivery (lane, lane_rank) WHERE lane_rank IS NOT NULL;
-- The last number of a lane.
CREATE INDEX IF NOT EXISTS delivery_number ON delivery (lane, lane_number) WHERE lane IS NOT NULL; --sqlite:
-- The dead letters.
CREATE INDEX IF NOT EXISTS delivery_dead ON delivery (service, route, reason) WHERE reason IS NOT NULL; --sqlite:
-- The heads that stop their lanes.
CREATE INDEX IF NOT EXISTS delivery_stopped ON delivery (service, route, stopped_us) WHERE stopped_us IS NOT NULL AND NOT is_behind;

-- The kept request, encrypted. It is deleted together with its row of `delivery`.
CREATE TABLE IF NOT EXISTS request (
    row BYTEA NOT NULL PRIMARY KEY,
    key_id TEXT NOT NULL,
    sealed BYTEA NOT NULL
);
CREATE INDEX IF NOT EXISTS request_sealed ON request (key_id);

-- Which operations claimed a content, of routes that refuse likely duplicates. Whether one holds it follows from its record, as
-- long as that has this fingerprint. `until_us` ends it where the operation completed; at `check_us` a sweep checks whether the
-- row is still needed.
CREATE TABLE IF NOT EXISTS content (
    digest BYTEA NOT NULL,
    id BYTEA NOT NULL,
    fingerprint BYTEA NOT NULL,
    until_us BIGINT NOT NULL,
    check_us BIGINT NOT NULL,
    PRIMARY KEY (digest, id)
);

CREATE INDEX IF NOT EXISTS content_check ON content (check_us);

-- Which operation names of a service are paused, since when, by whom and why. While a pause is being ended: since when, and
-- the place that was reached in `delivery_end`, from its last entry. Here and elsewhere, `sealed_by` is the id of the key that
-- `why`, or an event's response, is encrypted with, and `why_sealed_by` that of an event's `why`; NULL if it is clear.
CREATE TABLE IF NOT EXISTS pause (
    service TEXT NOT NULL,
    operation TEXT NOT NULL,
    since_us BIGINT NOT NULL,
    who TEXT NOT NULL,
    why TEXT NOT NULL,
    resumed_us BIGINT,
    place_us BIGINT NOT NULL DEFAULT 9223372036854775807,
    place_row BYTEA NOT NULL, --sqlite: place_row INTEGER NOT NULL,
    sealed_by TEXT GENERATED ALWAYS AS (CASE WHEN left(why, 1) = E'\x01' THEN split_part(substr(why, 2), ':', 1) END) STORED,
    PRIMARY KEY (service, operation)
);

-- That operation names were paused and resumed, by whom and why; kept like audits.
CREATE TABLE IF NOT EXISTS pause_audit (
    row BIGINT NOT NULL PRIMARY KEY,
    at_us BIGINT NOT NULL,
    operation TEXT NOT NULL,
    is_resumed BOOLEAN NOT NULL,
    who TEXT NOT NULL,
    why TEXT NOT NULL,
    service TEXT NOT NULL,
    sealed_by TEXT GENERATED ALWAYS AS (CASE WHEN left(why, 1) = E'\x01' THEN split_part(substr(why, 2), ':', 1) END) STORED
);
CREATE INDEX IF NOT EXISTS pause_audit_by_time ON pause_audit (service, at_us);

-- Events that sinks have yet to receive (`core.outbox`), written with their change; they outlive the operation. A relay may
-- publish one from `due_us` on; nobody else does until its lease ends. `since_us` is the time of the change (`at_us`), or of
-- the last redelivery. Dead ones wait for an operator.
CREATE TABLE IF NOT EXISTS event (
    row BYTEA NOT NULL PRIMARY KEY,
    service TEXT NOT NULL,
    sink TEXT NOT NULL,
    event_id TEXT NOT NULL,
    type TEXT NOT NULL,
    at_us BIGINT NOT NULL,
    since_us BIGINT NOT NULL,
    due_us BIGINT NOT NULL,
    lease_until_us BIGINT NOT NULL DEFAULT 0,
    content BYTEA NOT NULL,
    response BYTEA,
    tries BIGINT NOT NULL DEFAULT 0,
    redeliveries BIGINT NOT NULL DEFAULT 0,
    is_dead BOOLEAN NOT NULL DEFAULT FALSE,
    why TEXT NOT NULL DEFAULT '',
    -- At an ordered sink: the line, the place in it, and whether another event of the line goes first.
    line BYTEA,
    place BIGINT,
    is_behind BOOLEAN NOT NULL DEFAULT FALSE,
    sealed_by TEXT GENERATED ALWAYS AS (CASE
        WHEN substr(response, 1, 1) = '\x01'::BYTEA THEN split_part(encode(substr(response, 2, 65), 'escape'), ':', 1)
    END) STORED,
    why_sealed_by TEXT GENERATED ALWAYS AS (CASE WHEN left(why, 1) = E'\x01' THEN split_part(substr(why, 2), ':', 1) END) STORED
);

-- An id is made of the operation's, which is made of the service's name. Ids are random and in no other index, so that the rows
-- and most entries are appended in order.
CREATE UNIQUE INDEX IF NOT EXISTS event_identity ON event (event_id, sink);
-- What relays ask for and how old it is; what operators look at.
CREATE INDEX IF NOT EXISTS event_due ON event (service, sink, is_behind, due_us, since_us) WHERE NOT is_dead;
CREATE INDEX IF NOT EXISTS event_line ON event (service, sink, line, place) WHERE line IS NOT NULL AND NOT is_dead;
CREATE INDEX IF NOT EXISTS event_dead ON event (service, sink, event_id) WHERE is_dead;
CREATE INDEX IF NOT EXISTS event_failed ON event (service, sink, due_us) WHERE why <> '' AND NOT is_dead;
CREATE INDEX IF NOT EXISTS event_sealed ON event (sealed_by) WHERE sealed_by IS NOT NULL;
CREATE INDEX IF NOT EXISTS event_why_sealed ON event (why_sealed_by) WHERE why_sealed_by IS NOT NULL;

-- Which events each service writes (JSON): a sweep writes down what time did to the operations of all of them.
CREATE TABLE IF NOT EXISTS outbox (
    service TEXT NOT NULL PRIMARY KEY,
    content BYTEA NOT NULL
);

-- Sinks that get nothing until an operator resumes them.
CREATE TABLE IF NOT EXISTS suspension (
    service TEXT NOT NULL,
    sink TEXT NOT NULL,
    why TEXT NOT NULL,
    sealed_by TEXT GENERATED ALWAYS AS (CASE WHEN left(why, 1) = E'\x01' THEN split_part(substr(why, 2), ':', 1) END) STORED,
    PRIMARY KEY (service, sink)
);

-- Which gateway does which work of upkeep, by lease.
CREATE TABLE IF NOT EXISTS turn (
    name TEXT NOT NULL PRIMARY KEY,
    holder BYTEA NOT NULL,
    until_us BIGINT NOT NULL
);

-- How the identities of each operation name of a service are made, and which routes lead to it (JSON); whether it is in
-- the last accepted configuration.
CREATE TABLE IF NOT EXISTS recipe (
    service TEXT NOT NULL,
    operation TEXT NOT NULL,
    recipe BYTEA NOT NULL,
    routes TEXT NOT NULL,
    is_current BOOLEAN NOT NULL,
    PRIMARY KEY (service, operation)
);

-- Which processes serve which operation names (JSON) of which service, and when each was last seen running.
CREATE TABLE IF NOT EXISTS gateway (
    id BYTEA NOT NULL PRIMARY KEY,
    service TEXT NOT NULL,
    operations TEXT NOT NULL,
    host TEXT NOT NULL,
    seen_us BIGINT NOT NULL,
    level BIGINT NOT NULL
);

-- The recovery lease of an operation in doubt: under which token, held until when, and put off until when for background
-- probes. It is no part of the record, because it changes nothing there. Under another token than the record's it means
-- nothing; at `check_us` a sweep checks whether it is still needed.
CREATE TABLE IF NOT EXISTS recovery (
    id BYTEA NOT NULL PRIMARY KEY,
    token BIGINT NOT NULL,
    held_until_us BIGINT NOT NULL,
    put_off_until_us BIGINT NOT NULL,
    tries BIGINT NOT NULL,
    check_us BIGINT NOT NULL,
    -- Those of `tries` that were not urgent: the pause grows with them alone.
    background_tries BIGINT NOT NULL DEFAULT 0,
    -- When the last lease was returned, and with which finding; 0 and empty before that.
    asked_us BIGINT NOT NULL DEFAULT 0,
    finding TEXT NOT NULL DEFAULT ''
);

CREATE INDEX IF NOT EXISTS recovery_check ON recovery (check_us);

-- Changes made by hand or by probe, in order. An audit outlives the operation: from `keep_until_us` on it is deleted if the
-- record is gone, and kept for longer otherwise.
CREATE TABLE IF NOT EXISTS audit (
    row BIGINT NOT NULL PRIMARY KEY,
    id BYTEA NOT NULL,
    at_us BIGINT NOT NULL,
    event TEXT NOT NULL,
    token BIGINT NOT NULL,
    who TEXT NOT NULL,
    why TEXT NOT NULL,
    keep_until_us BIGINT NOT NULL,
    sealed_by TEXT GENERATED ALWAYS AS (CASE WHEN left(why, 1) = E'\x01' THEN split_part(substr(why, 2), ':', 1) END) STORED
);

CREATE INDEX IF NOT EXISTS audit_operation ON audit (id);
CREATE INDEX IF NOT EXISTS audit_sealed ON audit (sealed_by) WHERE sealed_by IS NOT NULL;
CREATE INDEX IF NOT EXISTS audit_keep ON audit (keep_until_us);

-- Which memory this file is, and what gateways wrote down about memories that were lost.
CREATE TABLE IF NOT EXISTS epoch (
    one BIGINT NOT NULL PRIMARY KEY CHECK (one = 1),
    identity TEXT NOT NULL,
    memo BYTEA NOT NULL,
    -- Changes with each purge and erasure, to invalidate copies; empty before the first.
    generation TEXT NOT NULL DEFAULT '',
    -- No token up to `floor` is drawn any more, and none above `ceiling` has been.
    floor BIGINT NOT NULL DEFAULT 0, --sqlite:
    ceiling BIGINT NOT NULL DEFAULT 0, --sqlite:
    -- What may be written here, and which programs may do it (`level`).
    level BIGINT NOT NULL DEFAULT 1
);
INSERT INTO epoch (one, identity, memo)
VALUES (1, gen_random_uuid()::TEXT, '') ON CONFLICT (one) DO NOTHING; --sqlite: VALUES (1, lower(hex(randomblob(16))), x'');

-- The witness of each link of a gateway: a number raised by every transaction in which a command took effect. If the host
-- noted a higher number, this is an older state of the data. A witness that was not raised between two checks at `check_us`
-- is deleted.
CREATE TABLE IF NOT EXISTS witness (
    link BYTEA NOT NULL PRIMARY KEY,
    number BIGINT NOT NULL,
    kept_number BIGINT NOT NULL,
    check_us BIGINT NOT NULL
);

CREATE INDEX IF NOT EXISTS witness_check ON witness (check_us);

-- What was seen of requests on routes that are only observed, and what enforcement would have done with them. No record, and
-- nothing that a claim depends on. `id` is null where the request had no identity.
CREATE TABLE IF NOT EXISTS observation (
    entry BYTEA NOT NULL PRIMARY KEY,
    service TEXT NOT NULL,
    route TEXT NOT NULL,
    id BYTEA,
    began_us BIGINT NOT NULL,
    content BYTEA,
    seen BYTEA NOT NULL,
    verdict TEXT NOT NULL,
    is_refused BOOLEAN NOT NULL,
    is_repeat BOOLEAN NOT NULL,
    is_rekeyed BOOLEAN NOT NULL
);

CREATE INDEX IF NOT EXISTS observation_history ON observation (service, id, began_us) WHERE id IS NOT NULL;
CREATE INDEX IF NOT EXISTS observation_content ON observation (service, content, began_us) WHERE content IS NOT NULL;
CREATE INDEX IF NOT EXISTS observation_time ON observation (began_us);
CREATE INDEX IF NOT EXISTS observation_finding ON observation (service, route, verdict, is_refused, began_us);

-- What each process counted in a minute, and in ten minutes, for pictures. Nothing depends on it. The times are of the process
-- that wrote it.
CREATE TABLE IF NOT EXISTS activity (
    service TEXT NOT NULL,
    span_us BIGINT NOT NULL,
    at_us BIGINT NOT NULL,
    writer BYTEA NOT NULL,
    until_us BIGINT NOT NULL,
    body BYTEA NOT NULL,
    PRIMARY KEY (service, span_us, at_us, writer)
);

CREATE INDEX IF NOT EXISTS activity_until ON activity (until_us);
