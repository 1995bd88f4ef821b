-- Many claims, or completions, each in one statement: {given} has their columns, as `i`. $1 is the clock, where it is not the
-- server's, and $2 the link whose witness is raised, or NULL.
-- name: insert_absent
-- absent --claim--> claimed, for many. No event tells of it.
WITH state AS (SELECT {now} AS now_us), changed AS (
    INSERT INTO operation (token, {columns})
    SELECT nextval('idempotency_gateway.token'), {values}
    FROM state AS s, {given}
    WHERE {is_new}
    ORDER BY i.id
    ON CONFLICT (id) DO NOTHING
    RETURNING id, token, claimed_us AS now_us
), {result}
-- name: replace_granted
-- claimed --complete--> completed (fenced: token and attempt id), for many, and their events. A late one has more to tell, and is
-- executed like others.
WITH state AS (SELECT {now} AS now_us), changed AS (
    UPDATE operation AS o SET {changes}
    FROM state AS s, {given}
    WHERE o.id = i.id AND o.id = ANY($3::BYTEA[]) AND o.token = i.token AND o.attempt_id = i.attempt_id
        AND o.version BETWEEN {record_versions}
        AND o.state = 'claimed' AND o.lease_until_us > s.now_us AND NOT o.request_kept
    RETURNING o.id, o.token, o.completed_us AS now_us, o.replay_until_us, {body} AS body
), stored AS (
    INSERT INTO response (token, drop_day, body)
    SELECT c.token, idempotency_gateway.drop_day(c.now_us, c.replay_until_us - c.now_us), c.body
    FROM changed AS c
    WHERE c.body IS NOT NULL
), {events}{result}
