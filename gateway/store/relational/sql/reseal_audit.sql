-- no row of the table: the texts of an audit under another key
UPDATE audit SET who = ?, why = ? WHERE row = ? AND who = ? AND why = ?
