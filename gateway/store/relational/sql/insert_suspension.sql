-- no row of the table: no event of this sink is leased from now on
INSERT INTO suspension (service, sink, why) VALUES (?, ?, ?) ON CONFLICT (service, sink) DO NOTHING
