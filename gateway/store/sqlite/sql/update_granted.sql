-- claimed | in_doubt --complete--> completed (fenced: token and attempt id): what the table made of the record as it was
-- granted. Whatever else may have happened to it under this claim, a completion leaves no trace of.
UPDATE operation SET {changed}
WHERE id = ? AND version = ? AND token = ? AND attempt_id = ? AND state IN ('claimed', 'in_doubt')
