-- What operators see, in the order of writing, without response bodies. ?1: whether refused; NULL for both.
SELECT operation_id, token, event, route, journaled_us, status, length(body), refused_us, refused_why
FROM entry WHERE ?1 IS NULL OR (refused_us IS NOT NULL) = ?1 ORDER BY id LIMIT ?2
