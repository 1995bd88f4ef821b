-- What SQLite has besides the tables that it shares, which come first: tokens are drawn in one place, and what is not
-- delivered is counted.

-- The last fencing token drawn. It outlives every record.
CREATE TABLE sequence (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    token INTEGER NOT NULL
);
INSERT INTO sequence (one, token) VALUES (1, 0);

-- How many rows of `delivery` wait for an attempt (empty reason) or are dead letters for a reason, and the bytes of their
-- requests. Maintained by the triggers below, because counting a million rows would take too long.
CREATE TABLE backlog (
    service TEXT NOT NULL,
    route TEXT NOT NULL,
    reason TEXT NOT NULL,
    number INTEGER NOT NULL,
    request_bytes INTEGER NOT NULL,
    PRIMARY KEY (service, route, reason)
) WITHOUT ROWID;

CREATE TRIGGER delivery_inserted AFTER INSERT ON delivery WHEN new.is_accepted OR new.reason IS NOT NULL
BEGIN
    INSERT INTO backlog (service, route, reason, number, request_bytes)
    VALUES (new.service, new.route, CASE WHEN new.is_accepted THEN '' ELSE new.reason END, 1, new.request_bytes)
    ON CONFLICT (service, route, reason) DO UPDATE
    SET number = number + 1, request_bytes = request_bytes + excluded.request_bytes;
END;

CREATE TRIGGER delivery_deleted AFTER DELETE ON delivery WHEN old.is_accepted OR old.reason IS NOT NULL
BEGIN
    UPDATE backlog SET number = number - 1, request_bytes = request_bytes - old.request_bytes
    WHERE service = old.service AND route = old.route
        AND reason = CASE WHEN old.is_accepted THEN '' ELSE old.reason END;
END;

CREATE TRIGGER delivery_updated AFTER UPDATE OF is_accepted, reason ON delivery
WHEN old.is_accepted <> new.is_accepted OR old.reason IS NOT new.reason
BEGIN
    UPDATE backlog SET number = number - 1, request_bytes = request_bytes - old.request_bytes
    WHERE service = old.service AND route = old.route
        AND reason = CASE WHEN old.is_accepted THEN '' ELSE old.reason END;
    INSERT INTO backlog (service, route, reason, number, request_bytes)
    SELECT new.service, new.route, CASE WHEN new.is_accepted THEN '' ELSE new.reason END, 1, new.request_bytes
    WHERE new.is_accepted OR new.reason IS NOT NULL
    ON CONFLICT (service, route, reason) DO UPDATE
    SET number = number + 1, request_bytes = request_bytes + excluded.request_bytes;
END;
