-- as `select_due`: what was found, by a transaction that changes it, without bodies
SELECT {record}, NULL::BYTEA FROM operation AS o WHERE o.id {among} ORDER BY o.id FOR UPDATE
