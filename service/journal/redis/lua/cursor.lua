-- Read one cursor or all. KEYS: head, cursors   ARGV: incarnation, name; no name: all
-- Returns {0, value or nil} or {0, name, value, ...}, {1} another incarnation.

if redis.call('HGET', KEYS[1], 'incarnation') ~= ARGV[1] then
  return {1}
end
if ARGV[2] then
  return {0, redis.call('HGET', KEYS[2], ARGV[2])}
end
local found = redis.call('HGETALL', KEYS[2])
table.insert(found, 1, 0)
return found
