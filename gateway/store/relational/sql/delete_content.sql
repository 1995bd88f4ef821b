-- no row of the table: a content that its operation does not hold any more
DELETE FROM content WHERE digest = ? AND id = ?
