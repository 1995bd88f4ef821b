-- no row of the table: witnesses to look after, and whether anybody has raised them since the last look
SELECT link, number > kept_number FROM witness WHERE check_us <= ? ORDER BY check_us LIMIT ?
