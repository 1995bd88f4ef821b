-- in_doubt, and claimed --lapse--> in_doubt not yet swept: by route, with the earliest doubt
-- (the second condition is that of the index)
SELECT route, count(*), min(coalesce(carried_us, lease_until_us)) FROM operation
WHERE state = 'in_doubt' AND state IN ('in_doubt', 'dead_letter')
GROUP BY route
UNION ALL
SELECT route, count(*), min(coalesce(carried_us, lease_until_us)) FROM operation
WHERE state = 'claimed' AND due_us <= ?
GROUP BY route
