-- no row of the table: how far the witness of a link has come
SELECT number FROM witness WHERE link = ?
