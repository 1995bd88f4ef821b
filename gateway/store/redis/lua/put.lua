-- Keep acknowledged completed records, and wake whoever waits for them. Moves no state.
--
-- Refused: everything when the era is not the writer's; an entry that was read before the last drop, of whatever operation;
-- an entry that comes later than it may (its window is over, or its reading is so old that a drop's marker might be gone); an
-- entry where one of this era, or a marker, has an equal or higher token. A refused entry is news all the same.
--
-- KEYS[1]   the era
-- KEYS[..]  the entries, each also the name of its channel
-- ARGV[1]   the era that the writer knows
-- ARGV[..]  for each entry: its bytes; when it was read (µs); until when (µs) it may be put; when (ms) it expires
-- Returns the era, the server's time, and why the server would not write an entry, empty if it would.
local FENCE, ERA_END = 11, 27  -- as in codec.py: 3 bytes of magic and kind, 8 of token; 16 of era

local held = redis.pcall('GET', KEYS[1])
local era = type(held) == 'string' and held:sub(-16) or ''
local time = redis.call('TIME')
local now_us = tonumber(time[1]) * 1000000 + tonumber(time[2])
local dropped_us = type(held) == 'string' and tonumber(held:sub(-32, -17)) or 0
if dropped_us > now_us then
    -- The clock was set back since, and a marker is all that there is.
    dropped_us = 0
end
local refusal = ''

local function is_fenced(key, entry)
    local there = redis.pcall('GETRANGE', key, 0, ERA_END - 1)
    if type(there) ~= 'string' or #there < FENCE or there:sub(1, 2) ~= 'ig' then
        return false
    end
    if there:sub(3, 3) == 'R' and there:sub(FENCE + 1) ~= era then
        return false
    end
    -- A token is compared in halves: a Lua number does not hold 64 bits.
    local there_high, there_low = struct.unpack('>I4I4', there, 4)
    local high, low = struct.unpack('>I4I4', entry, 4)
    return there_high > high or (there_high == high and there_low >= low)
end

for i = 2, #KEYS do
    local entry, read_us = ARGV[4 * i - 6], tonumber(ARGV[4 * i - 5])
    local until_us, expires_ms = tonumber(ARGV[4 * i - 4]), ARGV[4 * i - 3]
    local is_timely = dropped_us < read_us and now_us < until_us
    if era == ARGV[1] and is_timely and not is_fenced(KEYS[i], entry) then
        -- A server that is full refuses this. Whoever waits is woken all the same.
        local written = redis.pcall('SET', KEYS[i], entry)
        if written.err then
            refusal = written.err
        else
            redis.call('PEXPIREAT', KEYS[i], expires_ms)
        end
    end
    redis.call('PUBLISH', KEYS[i], '')
end
return {era, time[1], time[2], refusal}
