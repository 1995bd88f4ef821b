-- no row of the table: which events the services write
SELECT service, content FROM outbox
