-- in_doubt --prove | disprove | reinstate-->, dead_letter --requeue-->, accepted | dead_letter --withdraw-->,
-- completed --purge-->, released | tombstone --erase-->: who made the change and why, in the same transaction
INSERT INTO audit (id, at_us, event, token, who, why, keep_until_us) VALUES (?, ?, ?, ?, ?, ?, ?)
