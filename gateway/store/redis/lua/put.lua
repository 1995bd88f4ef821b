-- Keep acknowledged completed records, and wake their waiters. Moves no state.
--
-- Refuses everything if the era is not the writer's, and any entry whose window is over. A refused entry is still announced.
-- In one era an operation has one response, so an existing entry may be replaced.
--
-- KEYS[1]   the era
-- KEYS[..]  the entries, each also the name of its channel
-- ARGV[1]   the era that the writer knows
-- ARGV[..]  for each entry: its bytes; when it expires (ms)
-- Returns the era, the server's time, and the error of writing an entry, empty if there was none.
local held = redis.pcall('GET', KEYS[1])
local era = type(held) == 'string' and held:sub(-16) or ''
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + tonumber(time[2]) / 1000
local refusal = ''

for i = 2, #KEYS do
    local entry, expires_ms = ARGV[2 * i - 2], ARGV[2 * i - 1]
    if era == ARGV[1] and now_ms < tonumber(expires_ms) then
        -- A full server refuses this. The waiters are woken all the same.
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
