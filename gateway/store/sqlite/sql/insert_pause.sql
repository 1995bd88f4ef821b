-- no row of the table: nothing of this operation name is dispatched from now on
INSERT INTO pause (service, operation, since_us, who, why) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (service, operation) DO NOTHING
