-- no row of the table: an operation name was paused or resumed, by whom and why, in the same transaction
INSERT INTO pause_audit (row, service, operation, at_us, is_resumed, who, why)
VALUES (greatest(?3, (SELECT coalesce(max(a.row), 0) + 1 FROM pause_audit AS a)), ?1, ?2, ?3, ?4, ?5, ?6)
