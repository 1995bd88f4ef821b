-- Whether an operation has outcomes here.
SELECT 1 FROM entry WHERE operation_id = ? LIMIT 1
