-- completed --purge--> tombstone, and erase, as far as copies are concerned: forget the entry, and tell everybody.
--
-- A marker stays behind, so that a put that was under way is refused, and the moment is written down with the era, in case
-- the marker is evicted. What has a higher token is a later life of the operation and stays.
--
-- KEYS[1]  the entry, also the name of its channel
-- KEYS[2]  the era
-- ARGV[1]  the marker
-- ARGV[2]  how long (ms) the marker is needed
-- ARGV[3]  the channel of drops
-- ARGV[4]  what is said there
-- Returns the server's time.
local FENCE = 11  -- as in codec.py: 3 bytes of magic and kind, 8 of token

local function is_later(there)
    if type(there) ~= 'string' or #there < FENCE or there:sub(1, 2) ~= 'ig' then
        return false
    end
    -- A token is compared in halves: a Lua number does not hold 64 bits.
    local there_high, there_low = struct.unpack('>I4I4', there, 4)
    local high, low = struct.unpack('>I4I4', ARGV[1], 4)
    return there_high > high or (there_high == high and there_low > low)
end

if not is_later(redis.pcall('GETRANGE', KEYS[1], 0, FENCE - 1)) then
    -- Deleted first: a server that is out of memory refuses to write before it has freed something.
    redis.call('DEL', KEYS[1])
    redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
end
local held, time = redis.pcall('GET', KEYS[2]), redis.call('TIME')
-- Without an era nothing is put that was read by now.
if type(held) == 'string' and #held > 32 then
    local now_us = string.format('%010d%06d', time[1], time[2])
    redis.call('SET', KEYS[2], held:sub(1, -33) .. now_us .. held:sub(-16))
end
redis.call('PUBLISH', ARGV[3], ARGV[4])
redis.call('PUBLISH', KEYS[1], '')
return time
