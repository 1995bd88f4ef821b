-- no row of the table: the same values under another key, if they are as they were read
UPDATE operation
SET key = ?, request = ?, probe_target = ?, probe_host = ?, reason = ?, headers = ?, resource = ?,
    sealed_by = ?
WHERE id = ? AND token = ? AND key IS ? AND request = ? AND probe_target IS ? AND probe_host IS ? AND reason IS ?
    AND headers IS ? AND resource IS ?
