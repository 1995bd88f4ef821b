-- no row of the table: the witness of a link, raised in the transaction of what it stands for
INSERT INTO witness (link, number, kept_number, check_us) VALUES (?1, 1, 0, ?2)
ON CONFLICT (link) DO UPDATE SET number = number + 1
RETURNING number
