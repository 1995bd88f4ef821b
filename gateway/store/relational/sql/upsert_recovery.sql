-- no row of the table: take the recovery lease of an operation, in the transaction that found it in doubt
INSERT INTO recovery (
    id, token, tries, held_until_us, put_off_until_us, asked_us, finding, background_tries, check_us
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET
    token = excluded.token, tries = excluded.tries, held_until_us = excluded.held_until_us,
    put_off_until_us = excluded.put_off_until_us, asked_us = excluded.asked_us, finding = excluded.finding,
    background_tries = excluded.background_tries
