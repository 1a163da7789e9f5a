-- Write, read and delete snapshots.
--
-- KEYS: head, log, snaps, the snapshot's own   ARGV: task, incarnation, then
--   begin     seq, chain, token, 1 if it replaces one of this seq   Returns {0, 1 if it may be written}
--   part      token, part number, its bytes   Returns {0, 1 unless the token is gone}
--   complete  token, parts   Returns {0, 1 unless the token is gone}
--   find      n   Returns {0, token, seq, chain, parts}, or {0}
--   piece     part number   Returns {0, its bytes or nil}
--   places    Returns {0, seq, chain, ...}, newest first
--   drop      seq   Deletes all before it. Returns {0}, {5} if there is no usable one from there on
-- All: {1} another incarnation; begin: {5} the log does not contain the chain at that seq.
--
-- Completing a snapshot deletes all others of the same or an older seq, but one: those of dead
-- writers and of slow ones, which find their token gone, and those of entries that the log has lost.

local KEPT = 2

local head = redis.call('HMGET', KEYS[1], 'incarnation', 'seq', 'chain', 'trimmed')
local task = ARGV[1]
if head[1] ~= ARGV[2] then
  return {1}
end

local place = {head[2], head[3]}

local function remove(token)
  redis.call('UNLINK', string.sub(KEYS[3], 1, -2) .. ':' .. token)
  redis.call('HDEL', KEYS[3], token)
end

local function complete_ones()
  local found = {}
  for _, snapshot in ipairs(snapshots_in(KEYS[3])) do
    if snapshot[4] >= 0 then
      found[#found + 1] = snapshot
    end
  end
  return found
end

if task == 'begin' then
  local seq, chain, token = tonumber(ARGV[3]), ARGV[4], ARGV[5]
  local newest = usable_snapshots(KEYS[2], KEYS[3], place)[1]
  local is_late = newest and newest[2] >= seq + tonumber(ARGV[6])
  -- The log no longer shows whether it had a position before its first entry.
  local is_trimmed = is_late and seq < tonumber(head[4])
  if not is_trimmed and not leads_on_from(KEYS[2], place, seq, chain) then
    return {5}
  end
  if is_late then
    return {0, 0}
  end
  redis.call('HSET', KEYS[3], token, string.format('%.0f %s -1', seq, chain))
  return {0, 1}
end

if task == 'part' then
  if redis.call('HEXISTS', KEYS[3], ARGV[3]) == 0 then
    return {0, 0}
  end
  redis.call('HSET', KEYS[4], ARGV[4], ARGV[5])
  return {0, 1}
end

if task == 'complete' then
  local stored = redis.call('HGET', KEYS[3], ARGV[3])
  if not stored then
    return {0, 0}
  end
  redis.call('HSET', KEYS[3], ARGV[3], (string.gsub(stored, '-1$', ARGV[4])))
  local kept, newest = {}, nil
  for number, snapshot in ipairs(usable_snapshots(KEYS[2], KEYS[3], place, ARGV[3])) do
    newest = newest or snapshot[2]
    kept[snapshot[1]] = number <= KEPT
  end
  for _, snapshot in ipairs(newest and snapshots_in(KEYS[3]) or {}) do
    if (snapshot[4] >= 0 or snapshot[2] <= newest) and not kept[snapshot[1]] then
      remove(snapshot[1])
    end
  end
  return {0, 1}
end

if task == 'find' then
  local snapshot = complete_ones()[tonumber(ARGV[3]) + 1]
  if not snapshot then
    return {0}
  end
  return {0, unpack(snapshot)}
end

if task == 'places' then
  local found = {0}
  for _, snapshot in ipairs(complete_ones()) do
    found[#found + 1] = snapshot[2]
    found[#found + 1] = snapshot[3]
  end
  return found
end

if task == 'drop' then
  local newest = usable_snapshots(KEYS[2], KEYS[3], place)[1]
  if not newest or newest[2] < tonumber(ARGV[3]) then
    return {5}
  end
  for _, snapshot in ipairs(snapshots_in(KEYS[3])) do
    if snapshot[2] < tonumber(ARGV[3]) then
      remove(snapshot[1])
    end
  end
  return {0}
end

return {0, redis.call('HGET', KEYS[4], ARGV[3])}
