-- every row: the record as last written, with the body to replay; the caller settles it and applies the table
-- (the body by a subquery, because a LEFT JOIN costs five times as much)
SELECT {record}, CASE WHEN o.body_kept THEN (SELECT body FROM response WHERE response.row = o.row) END
FROM operation AS o
WHERE o.id {among}
