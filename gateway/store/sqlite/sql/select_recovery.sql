-- no row of the table: who may recover an operation, and what its probes came to
SELECT token, tries, held_until_us, put_off_until_us, asked_us, finding, background_tries FROM recovery WHERE id = ?
