-- completed: the body to replay, by the id of the operation
SELECT o.id, r.body FROM operation AS o {join} response AS r ON {response} WHERE o.id {among}
