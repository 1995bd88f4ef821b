-- every row that leaves a record: the record that the table returned, in the transaction that read the old one
UPDATE operation SET {changed}
WHERE id = ?
