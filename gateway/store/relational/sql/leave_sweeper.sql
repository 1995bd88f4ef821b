-- no row of the table: the pass is over
UPDATE sweeper SET until_us = 0 WHERE one = 1 AND owner = ?
