-- no row of the table: whether another operation of its lane goes first
UPDATE delivery SET is_behind = ? WHERE row = ?
