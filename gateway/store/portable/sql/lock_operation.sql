-- every row: as `select_operation`, by a transaction that changes the record
SELECT {record}, o.body FROM operation AS o WHERE o.id {among} ORDER BY o.id FOR UPDATE
