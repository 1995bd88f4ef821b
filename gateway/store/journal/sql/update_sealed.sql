-- The same outcome under another key, if it is the one that was read.
UPDATE entry SET command = ?, body = ? WHERE id = ? AND command = ?
RETURNING id
