-- Look up idempotency keys. KEYS: head, keys   ARGV: incarnation, how long keys are kept (ms), the keys
-- Returns {0, then for each key "" or u64 seq, u64 records, u64 ms, fingerprint}, {1} another
-- incarnation.

if redis.call('HGET', KEYS[1], 'incarnation') ~= ARGV[1] then
  return {1}
end
local oldest_ms = now_ms() - tonumber(ARGV[2])
local found = {0}
for number = 3, #ARGV do
  local stored = redis.call('HGET', KEYS[2], ARGV[number])
  if stored and struct.unpack('<I8', stored, 17) > oldest_ms then
    found[number - 1] = stored
  else
    found[number - 1] = ''
  end
end
return found
