-- no row of the table: the texts of an audit of a pause under another key
UPDATE pause_audit SET who = ?, why = ? WHERE row = ? AND who = ? AND why = ?
