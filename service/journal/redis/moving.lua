-- KEYS: spec, head, log, nonces, nonceq, keys, keyq, cursors, snaps, copies, versions, uses,
--   waits, waitq, bodies
-- ARGV: what to do, incarnation, then
--   entries  for each the entry as in the log, and the digest of the copy that it names or ""
--   keys     how many there are before, how long they are kept (ms), for each the key, what stands
--            under it and its place in the list
--   rows     1 where they are the first, for each the key, what stands under it, when it is due
--   rest     how many nonces, for each the nonce and its result, oldest first; names and values of
--            the cursors
-- Answers {0}, {1} another incarnation, {5} it does not follow from what is there.

local NONCES_KEPT_S = 86400

local head = redis.call('HMGET', KEYS[2], 'incarnation', 'seq', 'chain')
local task = ARGV[1]
if head[1] ~= ARGV[2] then
  return {1}
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
  return {0}
end

if task == 'keys' then
  if ARGV[3] == '0' then
    redis.call('UNLINK', KEYS[6], KEYS[7])
  elseif redis.call('LLEN', KEYS[7]) ~= tonumber(ARGV[3]) then
    return {5}
  end
  for at = 5, #ARGV, 3 do
    redis.call('HSET', KEYS[6], ARGV[at], ARGV[at + 1])
    redis.call('RPUSH', KEYS[7], ARGV[at + 2])
  end
  redis.call('PEXPIRE', KEYS[6], ARGV[4])
  redis.call('PEXPIRE', KEYS[7], ARGV[4])
  return {0}
end

if task == 'rows' then
  if ARGV[3] == '1' then
    redis.call('UNLINK', KEYS[13], KEYS[14])
    redis.call('HDEL', KEYS[2], 'waiting', 'waiting_bytes')
  end
  for at = 4, #ARGV, 3 do
    local _, _, _, row = waiting_row(ARGV[at + 1])
    redis.call('HSET', KEYS[13], ARGV[at], ARGV[at + 1])
    redis.call('ZADD', KEYS[14], ARGV[at + 2], ARGV[at])
    if row ~= '' then
      count_waiting(KEYS[2], 1, #ARGV[at] + #ARGV[at + 1] - 20)
    end
  end
  return {0}
end

-- rest
redis.call('UNLINK', KEYS[4], KEYS[5], KEYS[8])
local after = 4 + 2 * tonumber(ARGV[3])
for at = 4, after - 1, 2 do
  redis.call('HSET', KEYS[4], ARGV[at], ARGV[at + 1])
  redis.call('LPUSH', KEYS[5], ARGV[at])
end
redis.call('EXPIRE', KEYS[4], NONCES_KEPT_S)
redis.call('EXPIRE', KEYS[5], NONCES_KEPT_S)
for at = after, #ARGV, 2 do
  redis.call('HSET', KEYS[8], ARGV[at], ARGV[at + 1])
end
return {0}
