-- no row of the table: from now on, what programs of lower levels cannot read may be written
UPDATE epoch SET level = ?1 WHERE one = 1 AND level < ?1
