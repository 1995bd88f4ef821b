-- no row of the table: observations from before a time, some of them
DELETE FROM observation WHERE entry IN (SELECT entry FROM observation WHERE began_us < ?1 ORDER BY began_us LIMIT ?2)
