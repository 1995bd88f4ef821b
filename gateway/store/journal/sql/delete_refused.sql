-- An operator acknowledged it. Never an outcome that waits.
DELETE FROM entry WHERE id = ? AND refused_us IS NOT NULL
RETURNING id
