-- absent --claim--> claimed; nothing, where there is a record
INSERT INTO operation {inserted}
ON CONFLICT (id) DO NOTHING
