-- absent --claim--> claimed, absent --accept--> accepted; does nothing if there is a record
INSERT INTO operation {inserted}
ON CONFLICT (id) DO NOTHING
