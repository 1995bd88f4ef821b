-- The first schema. One row per outcome that the durable store has not applied. `version` is that of the row format.
-- `journaled_us` and `refused_us` are microseconds of the host's clock, for people. `refused_us` is set when the durable
-- store refused the outcome: such a row is kept for an operator and not retried.
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
    -- What the command has beside its ids, packed in the order of its fields; of a response, all but the body.
    command BLOB NOT NULL,
    body BLOB,
    -- Of a response: the record of the claim that it ends, packed, for repeats while the durable store is away.
    claim BLOB,
    -- The lineage of the memory that granted the claim; empty where that is not known.
    memory TEXT NOT NULL,
    -- An attempt has one outcome; a repeated one replaces the first.
    UNIQUE (operation_id, token, attempt_id)
);

-- What the flush reads, in the order of writing.
CREATE INDEX entry_waiting ON entry (id) WHERE refused_us IS NULL;

-- What an operator has to resolve.
CREATE INDEX entry_refused ON entry (id) WHERE refused_us IS NOT NULL;

-- The owner of the outcomes: a description of the service and its durable store.
CREATE TABLE owner (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    belongs_to TEXT NOT NULL
);
