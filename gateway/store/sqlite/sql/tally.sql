-- in_doubt, and claimed --lapse--> in_doubt that nobody has written down: by route, with the longest ago
SELECT route, count(*), min(claimed_us) FROM operation WHERE state = 'in_doubt' GROUP BY route
UNION ALL
SELECT route, count(*), min(claimed_us) FROM operation WHERE state = 'claimed' AND due_us <= ? GROUP BY route
