-- any row of the table, as `lifecycle` decided it: write if all is as it was read.
--
-- Nothing is written unless every condition holds. A server without room refuses the first write, or none of them, so that
-- nothing is written by halves.
--
-- KEYS[1]   the memory, KEYS[2] its witnesses
-- KEYS[..]  what is compared and written
-- ARGV[1]   the identity of the memory; empty: any
-- ARGV[2]   the floor of tokens; empty: any
-- ARGV[3]   the witness's link, empty for none; ARGV[4] its number that was acknowledged, 0 for none; ARGV[5] the next
-- ARGV[6]   how many conditions; for each: the index of its key, and what its value begins with, empty where it is absent
-- ARGV[..]  the commands: name, index of the key, number of arguments, arguments
-- Returns OK, or what was not as it was read: MEMORY, WITNESS, FLOOR or CHANGED.
local memory = redis.call('HMGET', KEYS[1], 'identity', 'floor')
if ARGV[1] ~= '' and memory[1] ~= ARGV[1] then
    return 'MEMORY'
end
if ARGV[2] ~= '' and (memory[2] or '0') ~= ARGV[2] then
    return 'FLOOR'
end
if ARGV[3] ~= '' and ARGV[4] ~= '0' then
    local held = redis.call('ZSCORE', KEYS[2], ARGV[3])
    if not held or tonumber(held) < tonumber(ARGV[4]) then
        return 'WITNESS'
    end
end
local place = 7
for _ = 1, tonumber(ARGV[6]) do
    local begins = ARGV[place + 1]
    local held = redis.call('GETRANGE', KEYS[tonumber(ARGV[place])], 0, 15)
    if held ~= begins then
        return 'CHANGED'
    end
    place = place + 2
end
if ARGV[3] ~= '' then
    redis.call('ZADD', KEYS[2], 'GT', ARGV[5], ARGV[3])
end
while ARGV[place] do
    local number = tonumber(ARGV[place + 2])
    redis.call(ARGV[place], KEYS[tonumber(ARGV[place + 1])], unpack(ARGV, place + 3, place + 2 + number))
    place = place + 3 + number
end
return 'OK'
