-- no row of the table: raise a link's witness from the number that was acknowledged last
UPDATE witness SET number = number + 1 WHERE link = ? AND number = ?
