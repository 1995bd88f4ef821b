-- no row of the table: a gateway that has stopped, and those not seen for long
DELETE FROM gateway WHERE id = ?1 OR seen_us < ?2
