-- no row of the table: a witness that was not raised for long
DELETE FROM witness WHERE link = ?
