-- Read a whole model, and write a staged one.
--
-- KEYS: spec, head, log, nonces, nonceq, keys, keyq, cursors, snaps, copies, versions, uses,
--   waits, waitq, bodies
-- ARGV: task, then
--   position  Returns {0, incarnation, created_ms, spec, given, seq, chain, trimmed, name and value
--             of each cursor, ...}, {4} unknown model
--   kept      incarnation, last item of the previous page or "", maximum number
--             Returns {0, item of keyq, stored value of its key or "", ...}
-- and, with the incarnation of a staged model, data to add:
--   entries   for each the entry as in the log, and the digest of the copy to which it refers or ""
--   keys      how long they are kept (ms), for each the key, its stored value, its item of keyq
--   rows      for each the key, its stored value, ms due
-- Returns {0}, {1} another incarnation, {5} an entry does not follow the end of the log.

local head = redis.call('HMGET', KEYS[2], 'incarnation', 'seq', 'chain', 'trimmed')
local task = ARGV[1]

if task == 'position' then
  local spec = redis.call('HMGET', KEYS[1], 'incarnation', 'created_ms', 'spec', 'given')
  if not spec[1] then
    return {4}
  end
  local found = {0, spec[1], spec[2], spec[3], spec[4], head[2], head[3], head[4]}
  for _, text in ipairs(redis.call('HGETALL', KEYS[8])) do
    found[#found + 1] = text
  end
  return found
end

if head[1] ~= ARGV[2] then
  return {1}
end

if task == 'kept' then
  -- Appends remove items from the front: if the last one is gone, all before it are gone, too.
  local last = ARGV[3] ~= '' and redis.call('LPOS', KEYS[7], ARGV[3])
  local from = last and last + 1 or 0
  local found = {0}
  for _, item in ipairs(redis.call('LRANGE', KEYS[7], from, from + ARGV[4] - 1)) do
    found[#found + 1] = item
    found[#found + 1] = redis.call('HGET', KEYS[6], string.sub(item, 9)) or ''
  end
  return found
end

if task == 'entries' then
  local seq, chain, last = tonumber(head[2]), head[3], {}
  for at = 3, #ARGV, 2 do
    local first, records = struct.unpack('<I8I4', ARGV[at])
    local nonce, own = string.sub(ARGV[at], 25, 40), string.sub(ARGV[at], 41, 80)
    if first ~= seq + 1 or (chain ~= '' and redis.sha1hex(chain .. nonce) ~= own) then
      return {5}
    end
    seq, chain = first + records - 1, own
    last[at] = seq
  end
  for at = 3, #ARGV, 2 do
    redis.call('XADD', KEYS[3], stream_id(last[at]), 'e', ARGV[at])
    if ARGV[at + 1] ~= '' then
      redis.call('ZADD', KEYS[12], last[at], string.format('%.0f ', last[at]) .. ARGV[at + 1])
    end
  end
  redis.call('HSET', KEYS[2], 'seq', string.format('%.0f', seq), 'chain', chain)
elseif task == 'keys' then
  for at = 4, #ARGV, 3 do
    redis.call('HSET', KEYS[6], ARGV[at], ARGV[at + 1])
    redis.call('RPUSH', KEYS[7], ARGV[at + 2])
  end
  redis.call('PEXPIRE', KEYS[6], ARGV[3])
  redis.call('PEXPIRE', KEYS[7], ARGV[3])
elseif task == 'rows' then
  for at = 3, #ARGV, 3 do
    local _, _, _, row = waiting_row(ARGV[at + 1])
    redis.call('HSET', KEYS[13], ARGV[at], ARGV[at + 1])
    redis.call('ZADD', KEYS[14], ARGV[at + 2], ARGV[at])
    if row ~= '' then
      count_waiting(KEYS[2], 1, #ARGV[at] + #ARGV[at + 1] - 20)
    end
  end
end
return {0}
