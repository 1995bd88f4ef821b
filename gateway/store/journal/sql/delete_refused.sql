-- An operator has looked at it, and has it elsewhere. Never what waits.
DELETE FROM entry WHERE id = ? AND refused_us IS NOT NULL
RETURNING id
