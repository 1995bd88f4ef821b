-- As `hot`. $3 is the number of the witness, which has to be what was acknowledged last, or NULL; $4 is higher than all tokens
-- that this process has drawn. Without a row of `state`, nothing is done.
-- name: insert_absent
-- absent --claim--> claimed, for many. No event tells of it.
WITH state AS (
    SELECT c.now_us, greatest(c.now_us, e.floor + 1, $4::BIGINT) AS token, e.ceiling
    FROM epoch AS e, (SELECT {now} AS now_us) AS c
    WHERE e.one = 1
        AND ($2::BYTEA IS NULL OR EXISTS (SELECT 1 FROM witness AS w WHERE w.link = $2 AND w.number = $3::BIGINT))
), changed AS (
    INSERT INTO operation (token, {columns})
    SELECT s.token + i.place - 1, {values}
    FROM state AS s, {given}
    WHERE s.token + i.place <= s.ceiling + 1
    ORDER BY i.id
    ON CONFLICT (id) DO NOTHING
    RETURNING id, token, claimed_us AS now_us
), {result}
-- name: replace_granted
-- claimed --complete--> completed (fenced: token and attempt id), for many, and their events
WITH state AS (
    SELECT {now} AS now_us
    WHERE ($2::BYTEA IS NULL OR EXISTS (SELECT 1 FROM witness AS w WHERE w.link = $2 AND w.number = $3::BIGINT))
        AND $4::BIGINT IS NOT NULL
), changed AS (
    UPDATE operation AS o SET {changes}
    FROM state AS s, {given}
    WHERE o.id = i.id AND o.id = ANY($5::BYTEA[]) AND o.token = i.token AND o.attempt_id = i.attempt_id
        AND o.version BETWEEN {record_versions}
        AND o.state = 'claimed' AND o.lease_until_us > s.now_us AND NOT o.request_kept
    RETURNING o.id, o.token, o.completed_us AS now_us, {body} AS body
), stored AS (
    INSERT INTO response (row, body) SELECT c.id, c.body FROM changed AS c WHERE c.body IS NOT NULL
), {events}{result}
