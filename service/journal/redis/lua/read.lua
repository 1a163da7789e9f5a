-- Read entries. KEYS: head, log   ARGV: incarnation, after, limit in bytes
-- Returns {0, last seq among the entries, {strings of entries}}, {1} another incarnation, {3, trimmed}.

local head = redis.call('HMGET', KEYS[1], 'incarnation', 'seq', 'trimmed')
if head[1] ~= ARGV[1] then
  return {1}
end
local after = tonumber(ARGV[2])
if after < tonumber(head[3]) then
  return {3, tonumber(head[3])}
end
local texts, last = entries_after(KEYS[2], after, tonumber(head[2]), tonumber(ARGV[3]))
return {0, last, texts}
