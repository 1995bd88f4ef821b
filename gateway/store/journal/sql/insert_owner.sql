INSERT INTO owner (one, belongs_to) VALUES (1, ?)
