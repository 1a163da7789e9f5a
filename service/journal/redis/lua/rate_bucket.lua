-- KEYS: the bucket   ARGV: rate, needed, most, now (ms) or ""
-- Answers {taken, ms to wait}. As service/journal/leasing.py has it.

local SET_BACK_MS = 1000

local rate, needed, most = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local now = ARGV[4] == '' and now_ms() or tonumber(ARGV[4])
local full = 1000 * rate
local held, at = full, now
local stored = redis.call('GET', KEYS[1])
if stored then
  local first, second = string.match(stored, '^(-?%d+) (%d+)$')
  if tonumber(second) - now <= SET_BACK_MS then
    held, at = tonumber(first), tonumber(second)
  end
end
now = math.max(now, at)
held = math.min(full, held + rate * (now - at))
if held < 1000 then
  return {0, math.ceil((1000 - held) / rate)}
end
local taken = math.max(needed, math.min(most, math.floor(held / 1000)))
held = held - 1000 * taken
-- Once it is full again it need not be known.
local filled_ms = math.ceil((full - held) / rate) + 1000
redis.call('SET', KEYS[1], string.format('%.0f %.0f', held, now),
  'PX', string.format('%.0f', filled_ms))
return {taken, 0}
