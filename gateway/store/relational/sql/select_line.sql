-- no row of the table: the first two operations in the line of a lane, in their order
SELECT d.lane, o.id, d.is_behind, d.lane_rank
FROM delivery AS d {join} operation AS o ON o.{row} = d.row
WHERE d.lane = {key} AND d.lane_rank IS NOT NULL
ORDER BY d.lane_rank
LIMIT 2
