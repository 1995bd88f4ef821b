-- every row: the record as last written, with the body to replay; the caller settles it
SELECT {record}, o.body FROM operation AS o WHERE o.id {among}
