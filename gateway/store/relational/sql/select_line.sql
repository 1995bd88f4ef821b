-- no row of the table: the first operations in the line of a lane
SELECT o.id, d.row, d.is_behind
FROM delivery AS d {join} operation AS o ON o.{row} = d.row
WHERE d.lane = ? AND d.lane_rank IS NOT NULL
ORDER BY d.lane_rank
LIMIT 2
