-- every row: what is known of the kept request of an operation that has one
SELECT {delivery} FROM delivery WHERE row = ?
