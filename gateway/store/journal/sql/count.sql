-- How many outcomes wait, how many were refused, and when the oldest waiting one was written.
SELECT
    (SELECT count(*) FROM entry INDEXED BY entry_waiting WHERE refused_us IS NULL),
    (SELECT count(*) FROM entry INDEXED BY entry_refused WHERE refused_us IS NOT NULL),
    (SELECT journaled_us FROM entry INDEXED BY entry_waiting WHERE refused_us IS NULL ORDER BY id LIMIT 1)
