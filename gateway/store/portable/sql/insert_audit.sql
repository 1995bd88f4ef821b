-- in_doubt --prove | disprove | reinstate-->, dead_letter --requeue-->, accepted | dead_letter --withdraw-->,
-- completed --purge-->, released | tombstone --erase-->: who made the change and why, in the same transaction. The number is
-- higher than all before.
INSERT INTO audit (row, id, at_us, event, token, who, why, keep_until_us)
VALUES (greatest(?2, (SELECT coalesce(max(a.row), 0) + 1 FROM audit AS a)), ?1, ?2, ?3, ?4, ?5, ?6, ?7)
