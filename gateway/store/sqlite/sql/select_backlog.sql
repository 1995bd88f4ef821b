-- no row of the table: what a service has not delivered, by route and reason, and the earliest acceptance of what waits
SELECT b.route, b.reason, b.number, b.request_bytes, (
    SELECT min(d.accepted_us) FROM delivery AS d
    WHERE d.is_accepted AND d.service = b.service AND d.route = b.route AND b.reason = ''
)
FROM backlog AS b
WHERE b.service = ? AND b.number > 0
