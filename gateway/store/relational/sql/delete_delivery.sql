-- claimed | in_doubt | accepted | dead_letter --complete--> completed, in_doubt --prove--> completed,
-- in_doubt --disprove--> released, accepted | dead_letter --withdraw--> released: the request is not kept any longer
DELETE FROM delivery WHERE row = {row_of}
