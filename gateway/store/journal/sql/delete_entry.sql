-- The durable store has applied it.
DELETE FROM entry WHERE id = ?
RETURNING operation_id
