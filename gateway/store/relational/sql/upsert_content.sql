-- no row of the table: an operation claimed a content
INSERT INTO content (digest, id, fingerprint, until_us, check_us) VALUES (?1, ?2, ?3, ?4, ?4)
ON CONFLICT (digest, id) DO UPDATE
SET fingerprint = excluded.fingerprint, until_us = excluded.until_us, check_us = excluded.check_us
