-- All outcomes of one operation, with what repeats are told by.
SELECT {entry}, body, claim, memory FROM entry WHERE operation_id = ? ORDER BY id LIMIT ?
