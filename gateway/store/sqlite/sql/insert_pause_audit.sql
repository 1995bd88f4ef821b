-- no row of the table: an operation name was paused or resumed, by whom and why, in the same transaction
INSERT INTO pause_audit (service, operation, at_us, is_resumed, who, why) VALUES (?, ?, ?, ?, ?, ?)
