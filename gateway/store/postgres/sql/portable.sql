-- name: advance_sequence
-- no row of the table: no token up to this one is drawn any more
UPDATE epoch SET floor = greatest(floor, ?1), ceiling = greatest(ceiling, ?1) WHERE one = 1

-- name: epoch
-- no row of the table: which memory this is, and the witnesses of the requested links
SELECT e.identity, '' AS parent, e.ceiling AS token, e.memo, e.generation, e.level, {now} AS now_us, w.link, w.number
FROM epoch AS e LEFT JOIN witness AS w ON w.link = ANY($2::BYTEA[])
WHERE e.one = 1

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
