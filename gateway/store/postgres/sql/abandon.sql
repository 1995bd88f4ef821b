-- claimed | in_doubt --abandon--> in_doubt (fenced: token and attempt id)
--
-- Said again by the same attempt it changes nothing, not even the word for why.
WITH input AS MATERIALIZED (
    SELECT * FROM unnest($2::uuid[], $3::bigint[], $4::uuid[], $5::text[])
    AS i (for_id, for_token, for_attempt_id, new_doubt)
    ORDER BY for_id
), locked AS MATERIALIZED (
    SELECT i.*, o.*
    FROM input i CROSS JOIN LATERAL (
        SELECT * FROM idempotency_gateway.operation o WHERE o.operation_id = i.for_id FOR NO KEY UPDATE
    ) o
), clock AS MATERIALIZED (
    -- Read when every lock is held: whoever was waited for came before.
    SELECT {now} AS now_us FROM (SELECT count(*) FROM locked) locks
), changed AS (
    UPDATE idempotency_gateway.operation o SET
        state = 'in_doubt',
        last_event = 'abandon',
        doubt = l.new_doubt,
        due_us = NULL,
        attention_us = coalesce(o.attention_us, c.now_us)
    FROM locked l CROSS JOIN clock c
    WHERE o.operation_id = l.operation_id AND l.version = {record_version}
        AND l.token = l.for_token AND l.attempt_id = l.for_attempt_id
        AND l.state IN ('claimed', 'in_doubt') AND l.last_event <> 'abandon'
    RETURNING o.operation_id
), raised AS (
    UPDATE idempotency_gateway.witness w SET number = w.number + 1
    WHERE w.link = $6::uuid AND EXISTS (SELECT FROM changed)
    RETURNING w.number
)
SELECT c.now_us, (SELECT count(*) FROM changed) AS changed, {record}, {witness}
FROM clock c LEFT JOIN locked o ON true
