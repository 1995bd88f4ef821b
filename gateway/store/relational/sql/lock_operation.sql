-- every row: as `select_operation`, by a transaction that changes the record, without the body
SELECT {record}, NULL FROM operation AS o WHERE o.id {among} ORDER BY o.id {locked}
