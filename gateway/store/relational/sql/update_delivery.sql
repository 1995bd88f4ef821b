-- every row that leaves a kept request, and accepted --expire--> dead_letter
UPDATE delivery SET {delivery changed}
WHERE row = {row_of}
