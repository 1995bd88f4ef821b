-- no row of the table: who may recover an operation
SELECT token, held_until_us, put_off_until_us, tries FROM recovery WHERE id = ?
