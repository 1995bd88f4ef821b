-- every row: what is known of the kept request of operations that have one
SELECT row, {delivery} FROM delivery WHERE row {among}
