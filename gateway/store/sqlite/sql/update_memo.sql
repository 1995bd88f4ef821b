-- no row: what gateways wrote down about memories that were lost
UPDATE epoch SET memo = ? WHERE one = 1
