-- absent | released --claim--> claimed, in_doubt --takeover--> claimed: the last token drawn, in the same transaction
UPDATE sequence SET token = ? WHERE one = 1
