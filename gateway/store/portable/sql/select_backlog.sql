-- no row of the table: what a service has not delivered, by route and reason, and the earliest acceptance of what waits; of more
-- than a hundred thousand an estimate
SELECT w.route, '', count(*), sum(w.request_bytes)::BIGINT, min(w.accepted_us) FROM (
    SELECT d.route, d.request_bytes, d.accepted_us FROM delivery AS d WHERE d.is_accepted AND d.service = ?1 LIMIT 100000
) AS w
GROUP BY w.route
UNION ALL
SELECT w.route, w.reason, count(*), sum(w.request_bytes)::BIGINT, 0 FROM (
    SELECT d.route, d.reason, d.request_bytes FROM delivery AS d
    WHERE NOT d.is_accepted AND d.reason IS NOT NULL AND d.service = ?1
    LIMIT 100000
) AS w
GROUP BY w.route, w.reason
