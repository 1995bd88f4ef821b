-- no row of the table: the recovery lease of an operation, and the result of its probes
SELECT token, tries, held_until_us, put_off_until_us, asked_us, finding, background_tries FROM recovery WHERE id = ?
