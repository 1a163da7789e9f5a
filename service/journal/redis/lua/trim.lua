-- Trim the log, one bounded step.
-- KEYS: head, log, snaps, bodies   ARGV: incarnation, through, "" or the number of newer snapshots of
--   the snapshot from which the log must continue
-- Returns {0, 1 if there may be more to do}, {1} another incarnation.

local STEP = 1000

local head = redis.call('HMGET', KEYS[1], 'incarnation', 'seq', 'chain')
if head[1] ~= ARGV[1] then
  return {1}
end
local through = tonumber(ARGV[2])
if ARGV[3] ~= '' then
  local place = {head[2], head[3]}
  local snapshot = usable_snapshots(KEYS[2], KEYS[3], place)[tonumber(ARGV[3]) + 1]
  if not snapshot then
    return {0, 0}
  end
  through = math.min(through, snapshot[2])
end
local kept = stream_id(through + 1)
-- Whole nodes of the stream first, which can be limited; the rest is part of one node.
local removed = redis.call('XTRIM', KEYS[2], 'MINID', '~', kept, 'LIMIT', STEP)
if removed == 0 then
  redis.call('XTRIM', KEYS[2], 'MINID', kept)
end
local first = redis.call('XRANGE', KEYS[2], '-', '+', 'COUNT', 1)[1]
local trimmed = first and struct.unpack('<I8', first[2][2]) - 1 or head[2]
redis.call('HSET', KEYS[1], 'trimmed', trimmed)
local gone = redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', trimmed, 'LIMIT', 0, STEP)
local bytes = 0
for _, nonce in ipairs(gone) do
  local body = string.sub(KEYS[4], 1, -#'bodies' - 1) .. 'body:' .. nonce
  bytes = bytes + redis.call('STRLEN', body)
  redis.call('UNLINK', body)
  redis.call('ZREM', KEYS[4], nonce)
end
if #gone > 0 then
  redis.call('HINCRBY', KEYS[1], 'bodies_bytes', -bytes)
end
return {0, (removed > 0 or #gone == STEP) and 1 or 0}
