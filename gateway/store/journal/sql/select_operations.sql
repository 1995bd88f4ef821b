-- The operations that have outcomes here.
SELECT DISTINCT operation_id FROM entry
