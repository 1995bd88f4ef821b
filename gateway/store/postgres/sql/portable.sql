-- name: advance_sequence
-- no row of the table: no token up to this one is drawn any more
UPDATE epoch SET floor = greatest(floor, ?1), ceiling = greatest(ceiling, ?1) WHERE one = 1

-- name: epoch
-- no row of the table: which memory this is, and the witnesses of the requested links
SELECT e.identity, '' AS parent, e.ceiling AS token, e.memo, e.generation, e.level, {now} AS now_us, w.link, w.number
FROM epoch AS e LEFT JOIN witness AS w ON w.link = ANY($2::BYTEA[])
WHERE e.one = 1

-- name: find_stopped
-- no row of the table: records between two ids that are in doubt or dead letters, written as such or made so by the clock;
-- with `?7` only those whose recovery lease is free and that were not put off
SELECT {record}, NULL::BYTEA
FROM operation AS o
WHERE (
        (o.state = ?5 AND o.state IN ('in_doubt', 'dead_letter') AND o.id > ?1 AND o.id <= ?2)
        OR (o.state = ?6 AND o.due_us <= ?8 AND o.id > ?1 AND o.id <= ?2)
    )
    AND o.version BETWEEN {record_versions} AND NOT (o.first_claimed_us > ?3 AND o.first_claimed_us <= ?8)
    AND (?4::TEXT IS NULL OR o.route IN (SELECT jsonb_array_elements_text(?4::TEXT::JSONB)))
    AND (NOT ?7::BOOLEAN OR NOT EXISTS (
        SELECT 1 FROM recovery AS r
        WHERE r.id = o.id AND r.token = o.token AND (
                r.held_until_us > ?8 AND r.held_until_us <= ?8 + {recovery_lease_us_max}
                OR r.asked_us <= ?8 AND r.put_off_until_us > ?8
            )
    ))
ORDER BY o.id
LIMIT ?9

-- name: select_ahead
-- no row of the table: claims whose lease begins in the future, because the clock was set back since; never one that a newer
-- program wrote
SELECT o.id FROM operation AS o
WHERE o.state = ?1 AND o.due_us > ?2 AND o.lease_until_us > ?2 + o.lease_us AND o.version BETWEEN {record_versions}
LIMIT ?3

-- name: select_clock
-- no row of the table: the store's clock, and between which numbers tokens are drawn
SELECT {now}, e.floor, e.ceiling FROM epoch AS e WHERE e.one = 1

-- name: select_doubt_ahead
-- no row of the table: operations in doubt whose lease begins in the future, because the clock was set back since: recovery
-- counts from its end (the conditions on one column are those of the index); never one that a newer program wrote
SELECT o.id FROM operation AS o
WHERE o.state = ?1 AND o.state IN ('in_doubt', 'dead_letter') AND o.lease_until_us > ?2
    AND o.lease_until_us > ?2 + o.lease_us AND o.version BETWEEN {record_versions}
LIMIT ?3

-- name: select_due
-- claimed --lapse--> in_doubt, accepted --expire--> dead_letter, completed --retire--> tombstone,
-- released | tombstone --collect--> absent: the longest overdue first, and never one that a newer program wrote; each is then
-- locked, and read again.
SELECT o.id FROM operation AS o
WHERE o.state = ? AND o.due_us <= ? AND o.version BETWEEN {record_versions}
ORDER BY o.due_us
LIMIT ?

-- name: select_ended
-- tombstone --collect--> absent: as `select_due`, the narrow ones
SELECT o.id FROM operation AS o
WHERE o.kind IS NOT NULL AND o.remember_until_us / 60000000 <= ?2::BIGINT / 60000000 AND o.remember_until_us <= ?2
    AND ?1 = 'tombstone' AND o.version BETWEEN {record_versions}
ORDER BY o.remember_until_us / 60000000
LIMIT ?3

-- name: select_turns
-- no row of the table: who does these works of upkeep, and until when
SELECT name, holder, until_us FROM turn WHERE name IN (SELECT jsonb_array_elements_text(?::TEXT::JSONB))

-- name: take_turns
-- no row of the table: who does which works of upkeep from now on. Another one's turn is free when its lease is over, and when it
-- ends later than any that begins now, because the clock was set back.
INSERT INTO turn (name, holder, until_us)
SELECT o.value, ?2::BYTEA, ?3::BIGINT FROM jsonb_array_elements_text(?1::TEXT::JSONB) AS o (value) ORDER BY o.value
ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, until_us = excluded.until_us
WHERE turn.holder = excluded.holder OR turn.until_us <= ?4 OR turn.until_us > excluded.until_us
RETURNING name

-- name: update_ceiling
-- absent | released --claim | accept-->, accepted --dispatch-->, in_doubt --takeover-->: no token above this one was drawn, in
-- the same transaction
UPDATE epoch SET ceiling = greatest(ceiling, ?1) WHERE one = 1

-- name: update_floor
-- released | tombstone --collect | erase--> absent: the operation's token is not drawn again, in the same transaction
UPDATE epoch SET floor = greatest(floor, ?1) WHERE one = 1
