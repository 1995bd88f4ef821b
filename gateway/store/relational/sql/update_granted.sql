-- claimed | in_doubt --complete--> completed (fenced: token and attempt id): the completed form of the record as it was
-- granted. A completion overwrites whatever else happened to the record under this claim.
UPDATE operation SET {changed}
WHERE id = ? AND version BETWEEN {record_versions} AND token = ? AND attempt_id = ? AND state IN ('claimed', 'in_doubt') AND NOT request_kept
