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
    AND (?4::TEXT IS NULL OR o.route IN ({each of ?4}))
    AND (NOT ?7::BOOLEAN OR NOT EXISTS (
        SELECT 1 FROM recovery AS r
        WHERE r.id = o.id AND r.token = o.token AND (
                r.held_until_us > ?8 AND r.held_until_us <= ?8 + {recovery_lease_us_max}
                OR r.asked_us <= ?8 AND r.put_off_until_us > ?8
            )
    ))
ORDER BY o.id
LIMIT ?9

-- name: select_clock
-- no row of the table: the store's clock, and between which numbers tokens are drawn
SELECT {now}, e.floor, e.ceiling FROM epoch AS e WHERE e.one = 1

-- name: update_ceiling
-- absent | released --claim | accept-->, accepted --dispatch-->, in_doubt --takeover-->: no token above this one was drawn, in
-- the same transaction
UPDATE epoch SET ceiling = greatest(ceiling, ?1) WHERE one = 1

-- name: update_floor
-- released | tombstone --collect | erase--> absent: the operation's token is not drawn again, in the same transaction
UPDATE epoch SET floor = greatest(floor, ?1) WHERE one = 1
