-- every row: the record as last written, with the body to replay; the caller settles it and applies the table
-- (the body by a subquery, because a LEFT JOIN costs SQLite five times as much)
SELECT {record}, CASE WHEN o.body_kept THEN (SELECT r.body FROM response AS r WHERE {response}) END
FROM operation AS o
WHERE o.id {among}
