-- The era: how long this server has remembered everything it was told.
--
-- A restart, a failover or a restore may bring back entries that were dropped, or forget drops. The era is bound to the run
-- of one server process and vanishes with a flush; whoever connects starts a new one when there is none of this run.
--
-- Under its key stand the run, the moment of the last drop (µs, 16 digits), and the era: who forgets the one forgets all.
--
-- KEYS[1]  the era
-- ARGV[1]  the run id of this server
-- ARGV[2]  a new era of 16 bytes, in case
-- Returns the era, the server's time, and why the server would not write the era that goes on, empty if it would.
local held = redis.pcall('GET', KEYS[1])
local is_new = type(held) ~= 'string' or held:sub(1, -33) ~= ARGV[1]
if is_new then
    held = ARGV[1] .. ('0'):rep(16) .. ARGV[2]
end
-- An era that goes on is written too: a master that became a replica is read as before, and takes nothing any more.
local written = redis.pcall('SET', KEYS[1], held)
if written.err and (is_new or written.err:find('READONLY', 1, true)) then
    return written
end
local time = redis.call('TIME')
return {held:sub(-16), time[1], time[2], written.err or ''}
