-- no row of the table: the last audits before a number, latest first
SELECT row, id, at_us, event, token, who, why FROM audit WHERE row < ? ORDER BY row DESC LIMIT ?
