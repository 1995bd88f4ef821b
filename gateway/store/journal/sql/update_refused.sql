-- The durable store refused it: keep it, and do not retry.
UPDATE entry SET refused_us = ?2, refused_why = ?3 WHERE id = ?1
