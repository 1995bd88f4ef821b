-- no row of the table: the number of a link's witness
SELECT number FROM witness WHERE link = ?
