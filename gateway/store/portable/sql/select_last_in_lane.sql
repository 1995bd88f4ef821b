-- absent | released --accept--> accepted: the last number in a lane
SELECT max(d.lane_number) FROM delivery AS d WHERE d.lane = ?
