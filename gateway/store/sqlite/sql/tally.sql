-- in_doubt, and claimed --lapse--> in_doubt not yet swept: by route, with the earliest claim
SELECT route, count(*), min(claimed_us) FROM operation WHERE state = 'in_doubt' GROUP BY route
UNION ALL
SELECT route, count(*), min(claimed_us) FROM operation WHERE state = 'claimed' AND due_us <= ? GROUP BY route
