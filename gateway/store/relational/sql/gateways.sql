-- name: advance_witness -- no row of the table: raise a link's witness from the number that was acknowledged last
UPDATE witness SET number = number + 1 WHERE link = ? AND number = ?
-- name: raise_witness
-- no row of the table: raise a link's witness, in the transaction of the changes that it stands for
INSERT INTO witness (link, number, kept_number, check_us) VALUES (?1, 1, 0, ?2)
ON CONFLICT (link) DO UPDATE SET number = witness.number + 1
RETURNING number
-- name: select_witness -- no row of the table: the number of a link's witness
SELECT number FROM witness WHERE link = ?
-- name: update_memo -- no row of the table: what gateways wrote down about lost memories
UPDATE epoch SET memo = ? WHERE one = 1
-- name: update_generation
-- completed --purge--> tombstone, released | tombstone --erase--> absent: invalidates all earlier copies
UPDATE epoch SET generation = ? WHERE one = 1
-- name: raise_level -- no row of the table: from now on, what programs of lower levels cannot read may be written
UPDATE epoch SET level = ?1 WHERE one = 1 AND level < ?1
-- name: select_recipes -- no row of the table: the remembered operation names with recipe and routes
SELECT service, operation, recipe, routes, is_current FROM recipe
-- name: upsert_recipe -- no row of the table: an operation name with recipe and routes, as remembered from now on
INSERT INTO recipe (service, operation, recipe, routes, is_current) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (service, operation) DO UPDATE
SET recipe = excluded.recipe, routes = excluded.routes, is_current = excluded.is_current
-- name: select_services -- no row of the table: the services whose operations may be here
SELECT DISTINCT service FROM recipe
-- name: select_running
-- no row of the table: what the other running gateways serve. A time in the future is from before the clock was set back.
SELECT DISTINCT g.service, o.value FROM gateway AS g, {each of g.operations} AS o
WHERE g.id <> ?1 AND g.seen_us BETWEEN ?2 AND ?3
-- name: select_older_gateways
-- no row of the table: the running gateways of programs of lower levels. A time in the future is from before the clock was
-- set back.
SELECT id, host, level FROM gateway WHERE level < ?1 AND seen_us >= ?2 ORDER BY host, id
-- name: update_gateway -- no row of the table: a gateway runs
UPDATE gateway SET seen_us = ?2 WHERE id = ?1
-- name: upsert_gateway -- no row of the table: a gateway whose configuration was accepted
INSERT INTO gateway (id, service, operations, host, seen_us, level) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET service = excluded.service, operations = excluded.operations, seen_us = excluded.seen_us
-- name: delete_gateways -- no row of the table: a gateway that has stopped, and those not seen for long
DELETE FROM gateway WHERE id = ?1 OR seen_us < ?2
-- name: take_turns
-- no row of the table: who does which works of upkeep from now on. Another one's turn is free when its lease is over, and when it
-- ends later than any that begins now, because the clock was set back. Whoever has no turn writes nothing.
INSERT INTO turn (name, holder, until_us)
SELECT n.value, CAST(?2 AS {bytes}), CAST(?3 AS BIGINT) FROM {each of ?1} AS n
WHERE NOT EXISTS (
    SELECT 1 FROM turn AS t WHERE t.name = n.value AND t.holder <> ?2 AND t.until_us > ?4 AND t.until_us <= ?3
)
ORDER BY n.value
ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, until_us = excluded.until_us
RETURNING name
-- name: delete_turns
-- no row of the table: a gateway has no turn any more; those that nobody wanted for long are forgotten
DELETE FROM turn WHERE holder = ?1 OR until_us < ?2
