-- tombstone: what many have in common
SELECT {kind} FROM kind WHERE kind {among}
