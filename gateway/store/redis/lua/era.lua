-- The era: a period in which this server has lost nothing, and no record was purged.
--
-- A restart, a failover or a restore may bring back what was purged. So an era is bound to the run of one server process, and
-- vanishes with a flush. Each purge in the durable store makes a new generation there, and with it a new era begins. A
-- gateway that connects starts an era if there is none of this run.
--
-- One key holds the run, the generation and the era, so that they can only be lost together.
--
-- KEYS[1]  the era
-- ARGV[1]  the run id of this server
-- ARGV[2]  a new era of 16 bytes, if one is needed
-- ARGV[3]  the generation that the caller knows, 16 bytes
-- ARGV[4]  1 if an era of another generation has to end, 0 if it may go on
-- Returns the era, the server's time, and the error of writing the current era again, empty if there was none.
local held = redis.pcall('GET', KEYS[1])
local is_here = type(held) == 'string' and held:sub(1, -33) == ARGV[1]
local is_over = is_here and ARGV[4] == '1' and held:sub(-32, -17) ~= ARGV[3]
if is_over then
    -- Delete first: a server that is out of memory refuses writes until something was freed.
    redis.pcall('DEL', KEYS[1])
end
if is_over or not is_here then
    held = ARGV[1] .. ARGV[3] .. ARGV[2]
end
-- Write an era that goes on, too: a master that became a replica still reads, but refuses writes.
local written = redis.pcall('SET', KEYS[1], held)
if written.err and (is_over or not is_here or written.err:find('READONLY', 1, true)) then
    return written
end
local time = redis.call('TIME')
return {held:sub(-16), time[1], time[2], written.err or ''}
