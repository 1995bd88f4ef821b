-- The era: how long this server has remembered everything that it was told, and no record was purged.
--
-- A restart, a failover or a restore may bring back what was purged. So an era is bound to the run of one server process, and
-- vanishes with a flush; and each purge in the durable store makes another generation there, with which a new era begins.
-- Whoever connects starts one where there is none of this run.
--
-- Under its key stand the run, the generation, and the era: who forgets the one forgets all.
--
-- KEYS[1]  the era
-- ARGV[1]  the run id of this server
-- ARGV[2]  a new era of 16 bytes, in case
-- ARGV[3]  the generation that the caller knows, 16 bytes
-- ARGV[4]  1 if an era of another generation has to end, 0 if it goes on
-- Returns the era, the server's time, and why the server would not write the era that goes on, empty if it would.
local held = redis.pcall('GET', KEYS[1])
local is_here = type(held) == 'string' and held:sub(1, -33) == ARGV[1]
local is_over = is_here and ARGV[4] == '1' and held:sub(-32, -17) ~= ARGV[3]
if is_over then
    -- Deleted first: a server that is out of memory refuses to write before it has freed something.
    redis.pcall('DEL', KEYS[1])
end
if is_over or not is_here then
    held = ARGV[1] .. ARGV[3] .. ARGV[2]
end
-- An era that goes on is written too: a master that became a replica is read as before, and takes nothing any more.
local written = redis.pcall('SET', KEYS[1], held)
if written.err and (is_over or not is_here or written.err:find('READONLY', 1, true)) then
    return written
end
local time = redis.call('TIME')
return {held:sub(-16), time[1], time[2], written.err or ''}
