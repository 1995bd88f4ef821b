-- The first schema. One row per outcome that the durable store has not taken: the command, column by column. What a
-- command has not is NULL. `version` says how the row is written. Times of the journal itself are microseconds of the
-- host's clock, for people; the durations are the command's. `refused_us` is set when the durable store said no: such a
-- row is kept for an operator and not tried again.
CREATE TABLE entry (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    version INTEGER NOT NULL,
    operation_id BLOB NOT NULL,
    token INTEGER NOT NULL,
    attempt_id BLOB NOT NULL,
    event TEXT NOT NULL,
    route TEXT NOT NULL,
    journaled_us INTEGER NOT NULL,
    refused_us INTEGER,
    refused_why TEXT,
    replay_us INTEGER,
    remember_us INTEGER,
    doubt TEXT,
    status INTEGER,
    reason BLOB,
    headers BLOB,
    body BLOB,
    -- An attempt has one outcome; what is said again takes the place of what was said before.
    UNIQUE (operation_id, token, attempt_id)
);

-- What the flush looks for, in the order in which it was written.
CREATE INDEX entry_waiting ON entry (id) WHERE refused_us IS NULL;

-- What an operator has to look at.
CREATE INDEX entry_refused ON entry (id) WHERE refused_us IS NOT NULL;

-- Whose outcomes these are: the service and its durable store, in words.
CREATE TABLE owner (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    belongs_to TEXT NOT NULL
);
