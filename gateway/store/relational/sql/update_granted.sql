-- claimed --complete--> completed (fenced: token and attempt id): the record as it was granted, completed. A completion
-- overwrites whatever else happened to the record under this claim. A late one has more to tell, and is executed like others.
UPDATE operation SET {completed}
WHERE id = ? AND version BETWEEN {record_versions} AND token = ? AND attempt_id = ? AND state = 'claimed' AND lease_until_us > ? AND NOT request_kept
