-- every row that leaves a record: the record that the table returned, with its body, in the transaction that read the old one
UPDATE operation SET {changed}, body = ?
WHERE id = ?
