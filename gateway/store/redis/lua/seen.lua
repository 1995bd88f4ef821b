-- no row of the table: what gateways saw of the durable store, and what it acknowledged to them. For one memory the highest token
-- stays, and for each link the highest number.
--
-- A note about another memory is replaced only by a writer that has read and compared it, and so are `former` and the links that
-- others stand for. Any writer replaces what is no note.
--
-- KEYS[1]   the note, a hash: identity, token in 20 digits, former in JSON; and for each link, under its id in 32 digits, number
--           and time in 20 digits each, and what else is noted of it
-- ARGV[1]   how many links are kept; there may be twice as many until a writer has compared them
-- ARGV[2]   how many bytes a note may have. No more arguments: read it
-- ARGV[3]   identity, ARGV[4] token, ARGV[5] former
-- ARGV[6]   the identity in the note that was read and compared, empty if there was none
-- ARGV[7]   how many microseconds older than the writer's latest link one has to be so that the latest stands for it
-- ARGV[8..] a link, and what is noted of it
-- Returns the note, of no fields if there is none; where one is written 1, or 0 if the current one stayed.
local key, links_max = KEYS[1], tonumber(ARGV[1])
local fields_max = 2 * links_max + 3
local size = redis.pcall('HLEN', key)
local is_note = type(size) == 'number' and size > 0 and size <= fields_max

if not ARGV[3] then
    local fields, bytes = is_note and redis.call('HGETALL', key) or {}, 0
    for _, field in ipairs(fields) do
        bytes = bytes + #field
    end
    return bytes <= tonumber(ARGV[2]) and fields or {}
end

local identity, token, former, compared = ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local held, held_token = false, false
if is_note then
    held, held_token = redis.call('HGET', key, 'identity'), redis.call('HGET', key, 'token')
end
if not (held and held_token and #held_token == 20 and held_token:match('^%d+$')) then
    held = false
    redis.call('DEL', key)
end
if held and held ~= identity and held ~= compared then
    return 0
end

-- Compare tokens in halves: a Lua number does not hold 64 bits.
local function is_higher(one, other)
    local high, other_high = tonumber(one:sub(1, 10)), tonumber(other:sub(1, 10))
    return high > other_high or (high == other_high and tonumber(one:sub(11)) > tonumber(other:sub(11)))
end
-- Numbers and times in microseconds stay below 2^53.
local function number_of(noted)
    return tonumber(noted:sub(1, 20)) or -1
end
local function time_of(noted)
    return tonumber(noted:sub(22, 41)) or -1
end

if held ~= identity or is_higher(token, held_token) then
    redis.call('HSET', key, 'identity', identity, 'token', token)
end
local is_compared = not held or held == compared
if is_compared then
    redis.call('HSET', key, 'former', former)
end
local newest = 0
for place = 8, #ARGV, 2 do
    local link, noted = ARGV[place], ARGV[place + 1]
    newest = math.max(newest, time_of(noted))
    local known = redis.call('HGET', key, link)
    local is_later = known and number_of(noted) > number_of(known)
    if is_later or not known and (is_compared or redis.call('HLEN', key) < fields_max) then
        redis.call('HSET', key, link, noted)
    end
end

-- What nobody has compared may tell of a loss.
if is_compared then
    local fields, links = redis.call('HGETALL', key), {}
    for place = 1, #fields, 2 do
        if #fields[place] == 32 then
            links[#links + 1] = {link = fields[place], time = time_of(fields[place + 1])}
        end
    end
    table.sort(links, function(one, other) return one.time > other.time end)
    for place, each in ipairs(links) do
        if place > links_max or each.time < newest - tonumber(ARGV[7]) then
            redis.call('HDEL', key, each.link)
        end
    end
end
return 1
