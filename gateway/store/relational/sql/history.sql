-- name: select_recovery -- no row of the table: the recovery lease of an operation, and the result of its probes
SELECT token, tries, held_until_us, put_off_until_us, asked_us, finding, background_tries FROM recovery WHERE id = ?
-- name: upsert_recovery
-- no row of the table: take the recovery lease of an operation, in the transaction that found it in doubt
INSERT INTO recovery (
    id, token, tries, held_until_us, put_off_until_us, asked_us, finding, background_tries, check_us
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET
    token = excluded.token, tries = excluded.tries, held_until_us = excluded.held_until_us,
    put_off_until_us = excluded.put_off_until_us, asked_us = excluded.asked_us, finding = excluded.finding,
    background_tries = excluded.background_tries
-- name: put_off_recovery -- no row of the table: the last holder returns the recovery lease
UPDATE recovery SET held_until_us = 0, put_off_until_us = ?, asked_us = ?, finding = ? WHERE id = ? AND token = ? AND tries = ?
-- name: select_audits -- no row of the table: the last audits of an operation, latest first
SELECT at_us, event, token, who, why FROM audit WHERE id = ? ORDER BY row DESC LIMIT ?
-- name: select_latest_audits -- no row of the table: the last audits before a number, latest first
SELECT row, id, at_us, event, token, who, why FROM audit WHERE row < ? ORDER BY row DESC LIMIT ?
-- name: count_observations -- no row of the table: the observations of a route, or of all, by what was found
SELECT route, verdict, is_refused, count(*), count(CASE WHEN is_repeat THEN 1 END), count(CASE WHEN is_rekeyed THEN 1 END)
FROM observation
WHERE service = ?1 AND (CAST(?2 AS TEXT) IS NULL OR route = ?2)
GROUP BY route, verdict, is_refused
ORDER BY route, verdict, is_refused
-- name: delete_observations -- no row of the table: observations from before a time, some of them
DELETE FROM observation WHERE entry IN (SELECT entry FROM observation WHERE began_us < ?1 ORDER BY began_us LIMIT ?2)
-- name: select_observations -- no row of the table: what was observed of one operation, oldest first
SELECT id, began_us, entry, route, content, seen
FROM observation
WHERE service = ?2 AND id = {key}
ORDER BY began_us, entry
LIMIT ?3
-- name: select_observed_content
-- no row of the table: the operations that were observed with a content since then, and when last
SELECT content, id, max(began_us) FROM observation
WHERE service = ?2 AND content = {key} AND began_us >= ?3
GROUP BY content, id
LIMIT ?4
-- name: select_observed_operations
-- no row of the table: operations with this finding, the latest first; one may come several times
SELECT id
FROM observation
WHERE service = ?1 AND route = ?2 AND verdict = ?3 AND is_refused = ?4 AND id IS NOT NULL
ORDER BY began_us DESC
LIMIT ?5
-- name: upsert_observation
-- no row of the table: what was seen of a request, or what is thought of it by now; whether it was rekeyed is known at once
INSERT INTO observation (entry, service, route, id, began_us, content, seen, verdict, is_refused, is_repeat, is_rekeyed)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
ON CONFLICT (entry) DO UPDATE
SET verdict = excluded.verdict, is_refused = excluded.is_refused, is_repeat = excluded.is_repeat
-- name: select_activity -- no row of the table: what the processes of a service counted, latest first
SELECT writer, span_us, at_us, until_us, body
FROM activity
WHERE service = ?1 AND span_us = ?2 AND at_us >= ?3 AND at_us < ?4
ORDER BY at_us DESC
LIMIT ?5
