-- no row of the table: the body of a response under another key
UPDATE response AS r SET body = ?1 FROM operation AS o WHERE o.id = ?2 AND {response}
