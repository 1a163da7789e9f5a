-- Read the first messages of an input.
-- KEYS: head, cursors, in   ARGV: incarnation, cursor's name, maximum messages, maximum bytes
-- Returns {0, the cursor's value or nil, the messages, at least one if there is any}, {1} another
--   incarnation, {7} in is not a stream.

if redis.call('HGET', KEYS[1], 'incarnation') ~= ARGV[1] then
  return {1}
end
local kind = redis.call('TYPE', KEYS[3]).ok
if kind ~= 'stream' and kind ~= 'none' then
  return {7}
end
local cursor = redis.call('HGET', KEYS[2], ARGV[2])
local most, limit = tonumber(ARGV[3]), tonumber(ARGV[4])
local found, size, start, step = {}, 0, '-', 1
while #found < most do
  local batch = redis.call('XRANGE', KEYS[3], start, '+', 'COUNT', math.min(step, most - #found))
  if #batch == 0 then
    break
  end
  for _, message in ipairs(batch) do
    size = size + 16
    for _, text in ipairs(message[2]) do
      size = size + #text
    end
    if #found > 0 and size > limit then
      return {0, cursor, found}
    end
    found[#found + 1] = message
  end
  start = '(' .. batch[#batch][1]
  step = math.max(1, math.min(64, 2 * step, math.floor((limit - size) * #found / size)))
end
return {0, cursor, found}
