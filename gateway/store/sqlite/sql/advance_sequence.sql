-- no row: no token up to this one is given to anybody
UPDATE sequence SET token = max(token, ?) WHERE one = 1
