-- no row of the table: the same values under another key, if they are as they were read
UPDATE operation
SET key = ?, request = ?, probe_target = ?, probe_host = ?, reason = ?, headers = ?, resource = ?,
    sealed_by = ?
WHERE id = ? AND token = ? AND key IS NOT DISTINCT FROM ? AND coalesce(request, '') = ? AND probe_target IS NOT DISTINCT FROM ? AND probe_host IS NOT DISTINCT FROM ? AND reason IS NOT DISTINCT FROM ?
    AND headers IS NOT DISTINCT FROM ? AND resource IS NOT DISTINCT FROM ?
