-- Rewrite the log without the entries that a trim only marked as deleted, in a node of the stream
-- that they share with kept entries.
-- KEYS: head, log, log:anew   ARGV: incarnation
-- Returns {0, 1 if done, 0 if the log is too large for one step}, {1} another incarnation.

local MAX_ENTRIES, MAX_BYTES, STEP = 10000, 16777216, 64

if redis.call('HGET', KEYS[1], 'incarnation') ~= ARGV[1] then
  return {1}
end
if redis.call('XLEN', KEYS[2]) > MAX_ENTRIES then
  return {0, 0}
end
redis.call('DEL', KEYS[3])
local size, from = 0, '-'
while true do
  local batch = redis.call('XRANGE', KEYS[2], from, '+', 'COUNT', STEP)
  for _, entry in ipairs(batch) do
    redis.call('XADD', KEYS[3], entry[1], unpack(entry[2]))
    size = size + #entry[2][2]
  end
  if size > MAX_BYTES then
    redis.call('UNLINK', KEYS[3])
    return {0, 0}
  end
  if #batch < STEP then
    break
  end
  from = '(' .. batch[STEP][1]
end
if size == 0 then
  redis.call('UNLINK', KEYS[2])
else
  redis.call('RENAME', KEYS[3], KEYS[2])
end
return {0, 1}
