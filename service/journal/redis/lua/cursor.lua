-- Read a cursor. KEYS: head, cursors   ARGV: incarnation, name
-- Returns {0, value or nil}, {1} another incarnation.

if redis.call('HGET', KEYS[1], 'incarnation') ~= ARGV[1] then
  return {1}
end
return {0, redis.call('HGET', KEYS[2], ARGV[2])}
