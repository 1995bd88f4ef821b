-- as `delete_delivery`: the encrypted request
DELETE FROM request WHERE row = {row_of}
