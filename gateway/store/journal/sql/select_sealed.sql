-- The outcomes behind this one that may have something confidential, whether they wait or were refused.
SELECT {entry}, body FROM entry WHERE id > ? AND event IN ('complete', 'abandon') ORDER BY id LIMIT 20
