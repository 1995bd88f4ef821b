-- no row of the table: no token up to this one is drawn any more
UPDATE sequence SET token = max(token, ?) WHERE one = 1
