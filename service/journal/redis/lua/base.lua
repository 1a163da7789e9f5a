-- Read what a replica starts from. KEYS: spec, head, log, snaps   ARGV: limit of entries in bytes
-- Returns {0, 0, incarnation, created_ms, spec, given, seq, chain, {token, seq, chain, parts, its first
--   part or nil} or {}, last seq among the entries, {strings of entries}}, {4} unknown model
--
-- A snapshot of several parts has no entries: they are read after its parts.

local spec = redis.call('HMGET', KEYS[1], 'incarnation', 'created_ms', 'spec', 'given')
if not spec[1] then
  return {4}
end
local head = redis.call('HMGET', KEYS[2], 'seq', 'chain', 'trimmed')
local after, snapshot, texts = 0, {}, {}
for _, one in ipairs(snapshots_in(KEYS[4])) do
  if one[4] >= 0 then
    after, snapshot = one[2], one
    break
  end
end
if snapshot[4] == 1 then
  snapshot[5] = redis.call('HGET', string.sub(KEYS[4], 1, -2) .. ':' .. snapshot[1], 0)
end
local last = after
if (not snapshot[4] or snapshot[5]) and after >= tonumber(head[3]) then
  texts, last = entries_after(KEYS[3], after, tonumber(head[1]), tonumber(ARGV[1]))
end
return {0, 0, spec[1], spec[2], spec[3], spec[4], head[1], head[2], snapshot, last, texts}
