-- absent --claim--> claimed; does nothing if there is a record
INSERT INTO operation {inserted}
ON CONFLICT (id) DO NOTHING
