-- no row of the table: what gateways saw of the durable store. For one memory, the highest token stays.
--
-- A note about another memory is replaced only by a writer that has read and compared it; any writer replaces an invalid one.
--
-- KEYS[1]  the note
-- ARGV[1]  the note to keep, in JSON: identity, token in 20 digits, former
-- ARGV[2]  the identity that it may replace, empty if none was there
-- Returns 1 if the note was written, 0 if the current one stayed.
local function note(text)
    local is_json, noted = pcall(cjson.decode, text)
    if not is_json or type(noted) ~= 'table' or type(noted.identity) ~= 'string' or type(noted.token) ~= 'string' then
        return nil
    end
    return noted.token:match('^%d+$') and #noted.token == 20 and noted or nil
end

local held, new = note(redis.pcall('GET', KEYS[1])), note(ARGV[1])
if held and held.identity ~= new.identity and held.identity ~= ARGV[2] then
    return 0
end
if held and held.identity == new.identity then
    -- Compare tokens in halves: a Lua number does not hold 64 bits.
    local held_high, held_low = tonumber(held.token:sub(1, 10)), tonumber(held.token:sub(11))
    local high, low = tonumber(new.token:sub(1, 10)), tonumber(new.token:sub(11))
    if high < held_high or (high == held_high and low < held_low) then
        return 0
    end
end
redis.call('SET', KEYS[1], ARGV[1])
return 1
