-- As `select_kept.sql`, for one operation.
SELECT operation_id, token, event, route, journaled_us, status, length(body), refused_us, refused_why
FROM entry WHERE operation_id = ?1 AND (?2 IS NULL OR (refused_us IS NOT NULL) = ?2) ORDER BY id LIMIT ?3
