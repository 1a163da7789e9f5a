-- KEYS: audit   ARGV: how long changes are kept (ms), then of each its id, incarnation, seq, JSON
-- Those that do not come behind the last one there are there already. Answers {0}.

local function parts_of(id)
  local ms, number = string.match(id, '^(%d+)-(%d+)$')
  return tonumber(ms), tonumber(number)
end

local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
local last_ms, last_number = parts_of(last and last[1] or '0-0')
for at = 2, #ARGV, 4 do
  local ms, number = parts_of(ARGV[at])
  if ms > last_ms or (ms == last_ms and number > last_number) then
    redis.call('XADD', KEYS[1], ARGV[at], 'i', ARGV[at + 1], 's', ARGV[at + 2], 'c', ARGV[at + 3])
    last_ms, last_number = ms, number
  end
end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return {0}
