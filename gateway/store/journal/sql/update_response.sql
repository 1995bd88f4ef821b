-- The same outcome under another key, if it is the one that was read.
UPDATE entry SET reason = ?, headers = ?, body = ?, resource = ?
WHERE id = ? AND headers IS ? AND resource IS ?
RETURNING id
