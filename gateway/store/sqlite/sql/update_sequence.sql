-- absent | released --claim | accept-->, accepted --dispatch-->, in_doubt --takeover-->: the last token drawn, in the
-- same transaction
UPDATE sequence SET token = ? WHERE one = 1
