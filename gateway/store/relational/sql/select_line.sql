-- no row of the table: the first operations in the line of a lane
SELECT row, is_behind FROM delivery WHERE lane = ? AND lane_rank IS NOT NULL ORDER BY lane_rank LIMIT 2
