-- every row: as `select_operation`, by a transaction that changes the record
-- (the body by a subquery, because a LEFT JOIN costs five times as much)
SELECT {record}, CASE WHEN o.body_kept THEN (SELECT body FROM response WHERE response.row = o.row) END
FROM operation AS o
WHERE o.id {among}
