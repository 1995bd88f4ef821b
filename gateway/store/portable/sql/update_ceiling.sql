-- absent | released --claim | accept-->, accepted --dispatch-->, in_doubt --takeover-->: no token above this one was drawn, in
-- the same transaction
UPDATE epoch SET ceiling = greatest(ceiling, ?1) WHERE one = 1
