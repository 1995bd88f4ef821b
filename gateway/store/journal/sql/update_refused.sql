-- The durable store said no: kept, and not tried again.
UPDATE entry SET refused_us = ?2, refused_why = ?3 WHERE id = ?1
