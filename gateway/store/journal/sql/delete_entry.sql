-- The durable store has it.
DELETE FROM entry WHERE id = ?
