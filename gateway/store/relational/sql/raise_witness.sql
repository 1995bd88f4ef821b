-- no row of the table: raise a link's witness, in the transaction of the changes that it stands for
INSERT INTO witness (link, number, kept_number, check_us) VALUES (?1, 1, 0, ?2)
ON CONFLICT (link) DO UPDATE SET number = witness.number + 1
RETURNING number
