-- The first schema. One narrow row per operation; the response body and the kept request are in other tables, so that
-- sweeps and claims never read them. Times are microseconds of the store's clock, digests and ids are bytes, states and
-- events are the values of the table. `version` is that of the row format: a program that does not know it leaves the row alone.
CREATE TABLE operation (
    row INTEGER PRIMARY KEY,
    id BLOB NOT NULL UNIQUE,
    version INTEGER NOT NULL,
    state TEXT,
    token INTEGER NOT NULL,
    attempt_id BLOB,
    last_event TEXT,
    holder TEXT,
    carried_us INTEGER,
    fingerprint_recipe BLOB,
    fingerprint_digest BLOB,
    fingerprint_raw BLOB,
    fingerprint_key_id TEXT,
    fingerprint_parts BLOB,
    attempts INTEGER,
    first_claimed_us INTEGER,
    claimed_us INTEGER,
    lease_until_us INTEGER,
    -- How long the lease was when it was last given.
    lease_us INTEGER,
    replay_until_us INTEGER,
    remember_until_us INTEGER NOT NULL,
    completed_us INTEGER,
    doubt TEXT,
    resolution_id BLOB,
    -- The response without its body; NULL when there is none. `body_kept`: the body has to be in `response`.
    status INTEGER,
    reason BLOB,
    headers BLOB,
    -- A digest of the version of the API that the response is in.
    api_version BLOB,
    -- The reference to what the operation made, in UTF-8. It outlives the response.
    resource BLOB,
    body_kept INTEGER,
    -- Whether the request is kept: then `delivery` and `request` have a row with this number.
    request_kept INTEGER,
    -- When the clock next changes the state; NULL if it never does.
    due_us INTEGER,
    kind BLOB,
    -- Where to probe the outcome, as given by the last claim; both or neither.
    probe_target BLOB,
    probe_host BLOB,
    -- The ids of the keys that anything of the record is encrypted with, in order and separated by a space; NULL if nothing is.
    sealed_by TEXT,
    route TEXT,
    operation TEXT,
    scope_digest BLOB NOT NULL,
    key_digest BLOB,
    key TEXT,
    -- The last attempt's request, for people: `METHOD HOST PATH`, empty if it is not known.
    request TEXT DEFAULT '',
    request_id TEXT,
    trace_id TEXT,
    -- What the other columns tell no more, for people (`core.history`); NULL if there is nothing.
    history BLOB,
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
CREATE TABLE kind (
    kind BLOB NOT NULL PRIMARY KEY,
    attempts INTEGER NOT NULL,
    status INTEGER NOT NULL,
    -- For how long a key is remembered after the completion.
    kept_us INTEGER NOT NULL,
    service TEXT NOT NULL,
    route TEXT NOT NULL,
    operation TEXT NOT NULL,
    last_event TEXT NOT NULL,
    fingerprint_key_id TEXT NOT NULL,
    fingerprint_recipe BLOB NOT NULL,
    api_version BLOB NOT NULL
) WITHOUT ROWID;

-- What the sweep reads, and lapsed claims that are not yet swept.
CREATE INDEX operation_due ON operation (state, due_us) WHERE due_us IS NOT NULL;
-- Narrow tombstones by the minute in which they end: equal entries take the room of one.
CREATE INDEX operation_end ON operation (remember_until_us / 60000000) WHERE kind IS NOT NULL;

-- What an operator has to resolve, in the order of its pages. Other operations are never in it.
CREATE INDEX operation_stopped ON operation (state, id, route, lease_until_us, carried_us) WHERE state IN ('in_doubt', 'dead_letter');

-- How many operations use which keys.
CREATE INDEX operation_sealed ON operation (sealed_by) WHERE sealed_by IS NOT NULL;

-- `row` is the operation's, so that bodies are appended in order and found without an index.
CREATE TABLE response (
    row INTEGER PRIMARY KEY,
    body BLOB NOT NULL
);

-- What a record knows of its kept request, from the acceptance until the outcome is known. Names and digest are copied from
-- the operation for the indexes. `is_accepted`: it waits for an attempt. `reason` is set for dead letters alone. The time of
-- pauses until `credited_us` was added to `deliver_until_us`.
-- `lane_rank` and `stopped_us` are those of `core.lane`: the rank is null where no other one of the lane waits for this one.
CREATE TABLE delivery (
    row INTEGER PRIMARY KEY,
    service TEXT NOT NULL,
    acceptance_id BLOB NOT NULL,
    accepted_us INTEGER NOT NULL,
    since_us INTEGER NOT NULL,
    next_attempt_us INTEGER NOT NULL,
    deliver_until_us INTEGER NOT NULL,
    request_bytes INTEGER NOT NULL,
    answers INTEGER NOT NULL,
    failure TEXT,
    reason TEXT,
    lane BLOB,
    lane_number INTEGER NOT NULL,
    stops_lane INTEGER NOT NULL,
    is_behind INTEGER NOT NULL,
    is_accepted INTEGER NOT NULL,
    lane_rank INTEGER,
    stopped_us INTEGER,
    operation TEXT NOT NULL,
    route TEXT NOT NULL,
    scope_digest BLOB NOT NULL,
    credited_us INTEGER NOT NULL DEFAULT 0
);

-- What workers ask for, what counts against the limit of a scope, what a pause keeps from expiring, and the oldest of a
-- route. All of them contain only what waits for an attempt; the first one nothing that waits for its turn in a lane.
CREATE INDEX delivery_due ON delivery (service, operation, route, next_attempt_us, deliver_until_us)
WHERE is_accepted AND NOT is_behind;
CREATE INDEX delivery_scope ON delivery (service, route, scope_digest, deliver_until_us) WHERE is_accepted;
CREATE INDEX delivery_end ON delivery (service, operation, deliver_until_us) WHERE is_accepted;
CREATE INDEX delivery_age ON delivery (service, route, accepted_us) WHERE is_accepted;
-- The lines of lanes. Unique, so that no two operations of a lane are under way or in doubt.
CREATE UNIQUE INDEX delivery_lane ON delivery (lane, lane_rank) WHERE lane_rank IS NOT NULL;
-- The heads that stop their lanes.
CREATE INDEX delivery_stopped ON delivery (service, route, stopped_us) WHERE stopped_us IS NOT NULL AND NOT is_behind;

-- The kept request, encrypted. It is deleted together with its row of `delivery`.
CREATE TABLE request (
    row INTEGER PRIMARY KEY,
    key_id TEXT NOT NULL,
    sealed BLOB NOT NULL
);
CREATE INDEX request_sealed ON request (key_id);

-- How many rows of `delivery` wait for an attempt (empty reason) or are dead letters for a reason, and the bytes of their
-- requests. Maintained by the triggers below, because counting a million rows would take too long.
CREATE TABLE backlog (
    service TEXT NOT NULL,
    route TEXT NOT NULL,
    reason TEXT NOT NULL,
    number INTEGER NOT NULL,
    request_bytes INTEGER NOT NULL,
    PRIMARY KEY (service, route, reason)
) WITHOUT ROWID;

CREATE TRIGGER delivery_inserted AFTER INSERT ON delivery WHEN new.is_accepted OR new.reason IS NOT NULL
BEGIN
    INSERT INTO backlog (service, route, reason, number, request_bytes)
    VALUES (new.service, new.route, CASE WHEN new.is_accepted THEN '' ELSE new.reason END, 1, new.request_bytes)
    ON CONFLICT (service, route, reason) DO UPDATE
    SET number = number + 1, request_bytes = request_bytes + excluded.request_bytes;
END;

CREATE TRIGGER delivery_deleted AFTER DELETE ON delivery WHEN old.is_accepted OR old.reason IS NOT NULL
BEGIN
    UPDATE backlog SET number = number - 1, request_bytes = request_bytes - old.request_bytes
    WHERE service = old.service AND route = old.route
        AND reason = CASE WHEN old.is_accepted THEN '' ELSE old.reason END;
END;

CREATE TRIGGER delivery_updated AFTER UPDATE OF is_accepted, reason ON delivery
WHEN old.is_accepted <> new.is_accepted OR old.reason IS NOT new.reason
BEGIN
    UPDATE backlog SET number = number - 1, request_bytes = request_bytes - old.request_bytes
    WHERE service = old.service AND route = old.route
        AND reason = CASE WHEN old.is_accepted THEN '' ELSE old.reason END;
    INSERT INTO backlog (service, route, reason, number, request_bytes)
    SELECT new.service, new.route, CASE WHEN new.is_accepted THEN '' ELSE new.reason END, 1, new.request_bytes
    WHERE new.is_accepted OR new.reason IS NOT NULL
    ON CONFLICT (service, route, reason) DO UPDATE
    SET number = number + 1, request_bytes = request_bytes + excluded.request_bytes;
END;

-- Which operations claimed a content, of routes that refuse likely duplicates. Whether one holds it follows from its record, as
-- long as that has this fingerprint. `until_us` ends it where the operation completed; at `check_us` a sweep checks whether the
-- row is still needed.
CREATE TABLE content (
    digest BLOB NOT NULL,
    id BLOB NOT NULL,
    fingerprint BLOB NOT NULL,
    until_us INTEGER NOT NULL,
    check_us INTEGER NOT NULL,
    PRIMARY KEY (digest, id)
) WITHOUT ROWID;

CREATE INDEX content_check ON content (check_us);

-- Which operation names of a service are paused, since when, by whom and why. While a pause is being ended: since when, and
-- the place that was reached in `delivery_end`, from its last entry. Here and elsewhere, `sealed_by` is the id of the key that
-- `why`, or an event's response, is encrypted with, and `why_sealed_by` that of an event's `why`; NULL if it is clear.
CREATE TABLE pause (
    service TEXT NOT NULL,
    operation TEXT NOT NULL,
    since_us INTEGER NOT NULL,
    who TEXT NOT NULL,
    why TEXT NOT NULL,
    resumed_us INTEGER,
    place_us INTEGER NOT NULL DEFAULT 0x7fffffffffffffff,
    place_row INTEGER NOT NULL DEFAULT 0x7fffffffffffffff,
    sealed_by TEXT AS (CASE WHEN substr(why, 1, 1) = char(1) THEN substr(why, 2, instr(why, ':') - 2) END),
    PRIMARY KEY (service, operation)
) WITHOUT ROWID;

-- That operation names were paused and resumed, by whom and why; kept like audits.
CREATE TABLE pause_audit (
    row INTEGER PRIMARY KEY,
    at_us INTEGER NOT NULL,
    operation TEXT NOT NULL,
    is_resumed INTEGER NOT NULL,
    who TEXT NOT NULL,
    why TEXT NOT NULL,
    service TEXT NOT NULL,
    sealed_by TEXT AS (CASE WHEN substr(why, 1, 1) = char(1) THEN substr(why, 2, instr(why, ':') - 2) END)
);
CREATE INDEX pause_audit_by_time ON pause_audit (service, at_us);

-- Events that sinks have yet to receive (`core.outbox`), written with their change; they outlive the operation. A relay may
-- publish one from `due_us` on; nobody else does until its lease ends, which is in no index, so that leasing writes the row
-- alone. `since_us` is the time of the change (`at_us`), or of the last redelivery. Dead ones wait for an operator.
CREATE TABLE event (
    row INTEGER PRIMARY KEY,
    service TEXT NOT NULL,
    sink TEXT NOT NULL,
    event_id TEXT NOT NULL,
    type TEXT NOT NULL,
    at_us INTEGER NOT NULL,
    since_us INTEGER NOT NULL,
    due_us INTEGER NOT NULL,
    lease_until_us INTEGER NOT NULL DEFAULT 0,
    content BLOB NOT NULL,
    response BLOB,
    tries INTEGER NOT NULL DEFAULT 0,
    redeliveries INTEGER NOT NULL DEFAULT 0,
    is_dead INTEGER NOT NULL DEFAULT 0,
    why TEXT NOT NULL DEFAULT '',
    -- At an ordered sink: the line, the place in it, and whether another event of the line goes first.
    line BLOB,
    place INTEGER,
    is_behind INTEGER NOT NULL DEFAULT 0,
    sealed_by TEXT AS (CASE
        WHEN substr(response, 1, 1) = x'01' THEN CAST(substr(response, 2, instr(response, x'3a') - 2) AS TEXT)
    END),
    why_sealed_by TEXT AS (CASE WHEN substr(why, 1, 1) = char(1) THEN substr(why, 2, instr(why, ':') - 2) END)
);

-- An id is made of the operation's, which is made of the service's name. Ids are random and in no other index, so that the rows
-- and most entries are appended in order.
CREATE UNIQUE INDEX event_identity ON event (event_id, sink);
-- What relays ask for and how old it is; what operators look at.
CREATE INDEX event_due ON event (service, sink, is_behind, due_us, since_us) WHERE NOT is_dead;
CREATE INDEX event_line ON event (service, sink, line, place) WHERE line IS NOT NULL AND NOT is_dead;
CREATE INDEX event_dead ON event (service, sink, event_id) WHERE is_dead;
CREATE INDEX event_failed ON event (service, sink, due_us) WHERE why <> '' AND NOT is_dead;
CREATE INDEX event_sealed ON event (sealed_by) WHERE sealed_by IS NOT NULL;
CREATE INDEX event_why_sealed ON event (why_sealed_by) WHERE why_sealed_by IS NOT NULL;

-- Which events each service writes (JSON): a sweep writes down what time did to the operations of all of them.
CREATE TABLE outbox (
    service TEXT PRIMARY KEY,
    content BLOB NOT NULL
) WITHOUT ROWID;

-- Sinks that get nothing until an operator resumes them.
CREATE TABLE suspension (
    service TEXT NOT NULL,
    sink TEXT NOT NULL,
    why TEXT NOT NULL,
    sealed_by TEXT AS (CASE WHEN substr(why, 1, 1) = char(1) THEN substr(why, 2, instr(why, ':') - 2) END),
    PRIMARY KEY (service, sink)
) WITHOUT ROWID;

-- The last fencing token drawn. It outlives every record.
CREATE TABLE sequence (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    token INTEGER NOT NULL
);
INSERT INTO sequence (one, token) VALUES (1, 0);

-- Which gateway does which work of upkeep, by lease.
CREATE TABLE turn (
    name TEXT PRIMARY KEY,
    holder BLOB NOT NULL,
    until_us INTEGER NOT NULL
) WITHOUT ROWID;

-- How the identities of each operation name of a service are made, and which routes lead to it (JSON); whether it is in
-- the last accepted configuration.
CREATE TABLE recipe (
    service TEXT NOT NULL,
    operation TEXT NOT NULL,
    recipe BLOB NOT NULL,
    routes TEXT NOT NULL,
    is_current INTEGER NOT NULL,
    PRIMARY KEY (service, operation)
) WITHOUT ROWID;

-- Which processes serve which operation names (JSON) of which service, with a program of which level, and when each was last
-- seen running.
CREATE TABLE gateway (
    id BLOB PRIMARY KEY,
    service TEXT NOT NULL,
    operations TEXT NOT NULL,
    host TEXT NOT NULL,
    seen_us INTEGER NOT NULL,
    level INTEGER NOT NULL
) WITHOUT ROWID;

-- The recovery lease of an operation in doubt: under which token, held until when, and put off until when for background
-- probes. It is no part of the record, because it changes nothing there. Under another token than the record's it means
-- nothing; at `check_us` a sweep checks whether it is still needed.
CREATE TABLE recovery (
    id BLOB PRIMARY KEY,
    token INTEGER NOT NULL,
    held_until_us INTEGER NOT NULL,
    put_off_until_us INTEGER NOT NULL,
    tries INTEGER NOT NULL,
    check_us INTEGER NOT NULL,
    -- Those of `tries` that were not urgent: the pause grows with them alone.
    background_tries INTEGER NOT NULL DEFAULT 0,
    -- When the last lease was returned, and with which finding; 0 and empty before that.
    asked_us INTEGER NOT NULL DEFAULT 0,
    finding TEXT NOT NULL DEFAULT ''
) WITHOUT ROWID;

CREATE INDEX recovery_check ON recovery (check_us);

-- Changes made by hand or by probe, in order. An audit outlives the operation: from `keep_until_us` on it is deleted if the
-- record is gone, and kept for longer otherwise.
CREATE TABLE audit (
    row INTEGER PRIMARY KEY,
    id BLOB NOT NULL,
    at_us INTEGER NOT NULL,
    event TEXT NOT NULL,
    token INTEGER NOT NULL,
    who TEXT NOT NULL,
    why TEXT NOT NULL,
    keep_until_us INTEGER NOT NULL,
    sealed_by TEXT AS (CASE WHEN substr(why, 1, 1) = char(1) THEN substr(why, 2, instr(why, ':') - 2) END)
);

CREATE INDEX audit_operation ON audit (id);
CREATE INDEX audit_sealed ON audit (sealed_by) WHERE sealed_by IS NOT NULL;
CREATE INDEX audit_keep ON audit (keep_until_us);

-- Which memory this file is, and what gateways wrote down about memories that were lost.
CREATE TABLE epoch (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    identity TEXT NOT NULL,
    memo BLOB NOT NULL,
    -- Changes with each purge and erasure, to invalidate copies; empty before the first.
    generation TEXT NOT NULL DEFAULT '',
    -- What may be written here, and which programs may do it (`level`).
    level INTEGER NOT NULL DEFAULT 1
);
INSERT INTO epoch (one, identity, memo) VALUES (1, lower(hex(randomblob(16))), x'');

-- The witness of each link of a gateway: a number raised by every transaction in which a command took effect. If the host
-- noted a higher number, this is an older state of the data. A witness that was not raised between two checks at `check_us`
-- is deleted.
CREATE TABLE witness (
    link BLOB PRIMARY KEY,
    number INTEGER NOT NULL,
    kept_number INTEGER NOT NULL,
    check_us INTEGER NOT NULL
) WITHOUT ROWID;

CREATE INDEX witness_check ON witness (check_us);

-- What was seen of requests on routes that are only observed, and what enforcement would have done with them. No record, and
-- nothing that a claim depends on. `id` is null where the request had no identity.
CREATE TABLE observation (
    entry BLOB PRIMARY KEY,
    service TEXT NOT NULL,
    route TEXT NOT NULL,
    id BLOB,
    began_us INTEGER NOT NULL,
    content BLOB,
    seen BLOB NOT NULL,
    verdict TEXT NOT NULL,
    is_refused INTEGER NOT NULL,
    is_repeat INTEGER NOT NULL,
    is_rekeyed INTEGER NOT NULL
) WITHOUT ROWID;

CREATE INDEX observation_history ON observation (service, id, began_us) WHERE id IS NOT NULL;
CREATE INDEX observation_content ON observation (service, content, began_us) WHERE content IS NOT NULL;
CREATE INDEX observation_time ON observation (began_us);
CREATE INDEX observation_finding ON observation (service, route, verdict, is_refused, began_us);

-- What each process counted in a minute, and in ten minutes, for pictures. Nothing depends on it. The times are of the process
-- that wrote it.
CREATE TABLE activity (
    service TEXT NOT NULL,
    span_us INTEGER NOT NULL,
    at_us INTEGER NOT NULL,
    writer BLOB NOT NULL,
    until_us INTEGER NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (service, span_us, at_us, writer)
) WITHOUT ROWID;
CREATE INDEX activity_until ON activity (until_us);
