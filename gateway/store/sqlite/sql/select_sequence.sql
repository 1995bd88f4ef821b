-- absent | released --claim | accept-->, accepted --dispatch-->, in_doubt --takeover-->: the last token drawn
SELECT token FROM sequence WHERE one = 1
