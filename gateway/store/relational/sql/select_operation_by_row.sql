-- no row of the table: as `select_operation`, without the body
SELECT {record}, NULL FROM operation AS o WHERE o.{row} {among}
