-- no row of the table: which events a service writes from now on
INSERT INTO outbox (service, content) VALUES (?1, ?2) ON CONFLICT (service) DO UPDATE SET content = ?2
