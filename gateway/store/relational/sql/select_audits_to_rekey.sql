-- no row of the table: audits in their order
SELECT row, id, event, token, who, why FROM audit WHERE row > ? ORDER BY row LIMIT ?
