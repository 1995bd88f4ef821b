-- no row of the table: a gateway has no turn any more; those that nobody wanted for long are forgotten
DELETE FROM turn WHERE holder = ?1 OR until_us < ?2
