-- name: join
-- No row of the table: list a worker among those that may grant, and strike off those of its host that have ended. A program
-- of a lower level than the store's may not grant
WITH before AS MATERIALIZED (
    SELECT g.beat FROM idempotency_gateway.gateway g WHERE g.id = $2
), struck AS (
    UPDATE idempotency_gateway.gateway g SET beat = NULL
    WHERE g.notes = ANY($6::bytea[]) AND g.id <> $2 AND g.beat IS NOT NULL
)
UPDATE idempotency_gateway.gateway g
SET beat = coalesce(g.beat, 0) + 1, seen_us = {now}, notes = $3, host = $4, boot = $5, vouched_for = ''
WHERE g.id = $2 AND g.level >= (SELECT e.level FROM idempotency_gateway.epoch e)
RETURNING
    g.beat,
    (SELECT b.beat IS NOT NULL FROM before b) AS was_listed,
    coalesce(idempotency_gateway.may_have_standby(), true) AS may_have_standby,
    {is_synchronous} AS is_synchronous,
    idempotency_gateway.settings_loaded_at() AS loaded_at

-- name: terms
-- Whether a standby has each commit before it is acknowledged, and since when the settings are the same.
SELECT {is_synchronous} AS is_synchronous, idempotency_gateway.settings_loaded_at() AS loaded_at

-- name: beat
-- No row of the table: a listed worker runs; strike off those whose beat is still the given one. A program of a lower level
-- than the store's may not grant any more
WITH raised AS (
    UPDATE idempotency_gateway.gateway g SET beat = g.beat + 1, seen_us = {now}, replay_us = $5
    WHERE g.id = $2 AND g.beat IS NOT NULL AND g.level >= (SELECT e.level FROM idempotency_gateway.epoch e)
    RETURNING g.beat
), struck AS (
    UPDATE idempotency_gateway.gateway g SET beat = NULL
    FROM unnest($3::bytea[], $4::bigint[]) AS s (silent, last_beat)
    WHERE g.id = s.silent AND g.beat = s.last_beat AND g.id <> $2
)
SELECT g.id, g.host, g.beat, g.seen_us, g.vouched_for, {is_synchronous} AS is_synchronous
FROM idempotency_gateway.gateway g
WHERE g.beat IS NOT NULL AND EXISTS (SELECT FROM raised)

-- name: members
-- The workers that may grant.
SELECT g.id, g.host, g.beat, g.seen_us, g.vouched_for
FROM idempotency_gateway.gateway g
WHERE g.beat IS NOT NULL
ORDER BY g.id

-- name: vouch
-- No row of the table: a promoted server has what was acknowledged to a worker, and to ended ones of the same boot of its host
UPDATE idempotency_gateway.gateway g SET vouched_for = $1
WHERE g.beat IS NOT NULL AND (g.id = $2 OR (g.notes = ANY($3::bytea[]) AND g.boot = $4))

-- name: accept_promotion
-- No row of the table: a promoted server continues its memory, for which every worker vouched unless that is not asked ($5)
UPDATE idempotency_gateway.epoch e
SET identity = gen_random_uuid()::text, timeline = coalesce(idempotency_gateway.server_timeline(), ''), memo = $1
WHERE e.memo = $2 AND e.identity = $3 AND e.timeline = $4
    AND ($5::boolean OR NOT EXISTS (
        SELECT FROM idempotency_gateway.gateway g WHERE g.beat IS NOT NULL AND g.vouched_for <> $6::text
    ))
RETURNING e.identity

-- name: note_running
-- A gateway that runs, and the longest replay window of its responses.
UPDATE idempotency_gateway.gateway SET seen_us = {now}, replay_us = $3 WHERE id = $2

-- name: note_stopped
-- A gateway that has stopped.
DELETE FROM idempotency_gateway.gateway WHERE id = $1

-- name: lease_turns
-- No row of the table: who does which work of upkeep. Returns the turns that this gateway has now, for $4.
--
-- A turn is free when its lease is over, and when it ends later than any that begins now, because the clock was set back.
-- Whoever has none writes nothing. A commit that a crash undoes is made again.
WITH clock AS MATERIALIZED (
    SELECT {now} AS now_us, set_config('synchronous_commit', 'off', true)
), free AS MATERIALIZED (
    SELECT w.wanted
    FROM unnest($3::text[]) AS w (wanted) CROSS JOIN clock c
    WHERE NOT EXISTS (
        SELECT
        FROM idempotency_gateway.turn t
        WHERE t.name = w.wanted AND t.holder <> $2 AND t.until_us > c.now_us AND t.until_us <= c.now_us + $4::bigint
    )
)
INSERT INTO idempotency_gateway.turn AS t (name, holder, until_us)
SELECT f.wanted, $2, c.now_us + $4::bigint FROM free f CROSS JOIN clock c ORDER BY f.wanted
ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, until_us = excluded.until_us
WHERE t.holder = excluded.holder OR t.until_us <= excluded.until_us - $4::bigint OR t.until_us > excluded.until_us
RETURNING t.name
