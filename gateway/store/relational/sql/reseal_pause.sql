-- no row of the table: the texts of a pause under another key
UPDATE pause SET who = ?, why = ? WHERE service = ? AND operation = ? AND who = ? AND why = ?
