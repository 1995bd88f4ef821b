-- What operators see, in the order of writing, without response bodies. ?1: whether refused; NULL for both.
SELECT {entry}, NULL FROM entry WHERE ?1 IS NULL OR (refused_us IS NOT NULL) = ?1 ORDER BY id LIMIT ?2
