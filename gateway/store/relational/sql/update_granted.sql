-- claimed | in_doubt --complete--> completed (fenced: token and attempt id): the record as it was granted, completed. A
-- completion overwrites whatever else happened to the record under this claim.
UPDATE operation SET {completed}
WHERE id = ? AND version BETWEEN {record_versions} AND token = ? AND attempt_id = ? AND state IN ('claimed', 'in_doubt') AND NOT request_kept
