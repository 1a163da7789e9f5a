-- Take tokens from a bucket, as `take` in service/journal/rate_buckets.py.
-- KEYS: the bucket   ARGV: rate, needed, most, now (ms) or ""
-- Returns {taken, ms to wait}.

local SET_BACK_MS = 1000

local rate, needed, most = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local now = ARGV[4] == '' and now_ms() or tonumber(ARGV[4])
local full = 1000 * rate
local level, at = full, now
local stored = redis.call('GET', KEYS[1])
if stored then
  local first, second = string.match(stored, '^(-?%d+) (%d+)$')
  if tonumber(second) - now <= SET_BACK_MS then
    level, at = tonumber(first), tonumber(second)
  end
end
now = math.max(now, at)
level = math.min(full, level + rate * (now - at))
if level < 1000 then
  return {0, math.ceil((1000 - level) / rate)}
end
local taken = math.max(needed, math.min(most, math.floor(level / 1000)))
level = level - 1000 * taken
-- A full bucket need not be stored.
local filled_ms = math.ceil((full - level) / rate) + 1000
redis.call('SET', KEYS[1], string.format('%.0f %.0f', level, now),
  'PX', string.format('%.0f', filled_ms))
return {taken, 0}
