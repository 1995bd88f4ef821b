-- no row of the table: as `prolong_delivery`, in the operation
UPDATE operation SET due_us = due_us + ?2 WHERE {row} = ?1
