-- no row of the table: what gateways wrote down about lost memories
UPDATE epoch SET memo = ? WHERE one = 1
