-- no row of the table: counts that are old, or kept for too long, because a clock was set back; none is still needed
SELECT service, span_us, at_us, writer, 1 = 0 FROM activity WHERE until_us <= ?1 OR until_us > ?1 + {activity_ahead_us} LIMIT ?2
