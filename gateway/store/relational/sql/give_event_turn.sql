-- no row of the table: the first event of a line may be published
UPDATE event SET is_behind = FALSE
WHERE is_behind AND row = (
    SELECT e.row FROM event AS e
    WHERE e.service = ?1 AND e.sink = ?2 AND e.line = ?3 AND NOT e.is_dead
    ORDER BY e.place
    LIMIT 1
)
