-- every row: some records that are encrypted with this key alone
SELECT id FROM operation WHERE sealed_by = ?1 LIMIT ?2
