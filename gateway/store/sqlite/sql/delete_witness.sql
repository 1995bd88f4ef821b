-- no row of the table: a witness that nobody has raised for long
DELETE FROM witness WHERE link = ?
