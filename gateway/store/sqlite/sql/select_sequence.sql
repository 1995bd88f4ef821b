-- absent | released --claim--> claimed, in_doubt --takeover--> claimed: the last token drawn
SELECT token FROM sequence WHERE one = 1
