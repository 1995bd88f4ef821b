-- no row of the table: a witness that was raised is kept for another period
UPDATE witness SET kept_number = number, check_us = ?1 WHERE link = ?2
