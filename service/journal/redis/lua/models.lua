-- Create, read, replace, delete, stage and show models.
--
-- KEYS: spec, head, log, nonces, nonceq, keys, keyq, cursors, snaps, copies, versions, uses,
--   waits, waitq, bodies; last, except for get, audit, which outlives the model
-- ARGV: task, then
--   get
--   create   incarnation, first chain, spec, given, change
--   replace  expected incarnation, seq, chain, then as create
--   delete   expected incarnation or "", expected seq and chain or "" and "", change
--            change: absent, or a change for the audit log and how long it is kept (ms)
--   stage    staged incarnation, seq trimmed through, chain there or "", names and values of the
--            cursors: writes a head without a spec, which no reader finds
--   show     staged incarnation, incarnation, seq, chain, created_ms, spec, given
--   discard  staged incarnation
-- Returns {0, is created, incarnation, created_ms, spec, given, seq, chain}, for delete, stage,
--   show and discard {0}; {1} another incarnation, {4} unknown model, {5, seq, chain} conflict with
--   the model's position.

local function record(is_created)
  local spec = redis.call('HMGET', KEYS[1], 'incarnation', 'created_ms', 'spec', 'given')
  if not spec[1] then
    return {4}
  end
  local head = redis.call('HMGET', KEYS[2], 'seq', 'chain')
  return {0, is_created, spec[1], spec[2], spec[3], spec[4], head[1], head[2]}
end

local function audit(incarnation, seq, change, kept_ms)
  if change then
    keep_change(KEYS[#KEYS], incarnation, seq, change, kept_ms)
  end
end

local function create(incarnation, chain, spec, given, change, kept_ms)
  redis.call('HSET', KEYS[1], 'incarnation', incarnation, 'created_ms', now_ms(),
    'spec', spec, 'given', given)
  redis.call('HSET', KEYS[2], 'incarnation', incarnation, 'seq', 0, 'chain', chain, 'trimmed', 0)
  audit(incarnation, 0, change, kept_ms)
  return record(1)
end

-- UNLINK frees large values in the background.
local function remove_snapshot(token)
  redis.call('UNLINK', string.sub(KEYS[9], 1, -2) .. ':' .. token)
  redis.call('HDEL', KEYS[9], token)
end

local function remove_copy(digest)
  redis.call('UNLINK', string.sub(KEYS[10], 1, -#'copies' - 1) .. 'copy:' .. digest)
  redis.call('HDEL', KEYS[10], digest)
end

local function remove()
  for _, token in ipairs(redis.call('HKEYS', KEYS[9])) do
    remove_snapshot(token)
  end
  for _, digest in ipairs(redis.call('HKEYS', KEYS[10])) do
    remove_copy(digest)
  end
  for _, nonce in ipairs(redis.call('ZRANGE', KEYS[15], 0, -1)) do
    redis.call('UNLINK', string.sub(KEYS[15], 1, -#'bodies' - 1) .. 'body:' .. nonce)
  end
  redis.call('UNLINK', unpack(KEYS, 1, #KEYS - 1))
end

local existing = record(0)
local task = ARGV[1]
if task == 'create' and existing[1] == 4 then
  remove()  -- a model staged under this id
  return create(ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7])
end
if (task == 'stage' or task == 'show') and existing[1] == 0 then
  return {5, existing[7], existing[8]}
end
if task == 'stage' then
  remove()
  redis.call('HSET', KEYS[2], 'incarnation', ARGV[2], 'seq', ARGV[3], 'chain', ARGV[4], 'trimmed', ARGV[3],
    'restored', 1)
  for at = 5, #ARGV, 2 do
    redis.call('HSET', KEYS[8], ARGV[at], ARGV[at + 1])
  end
  return {0}
end
if task == 'show' then
  local head = redis.call('HMGET', KEYS[2], 'incarnation', 'seq', 'chain')
  if head[1] ~= ARGV[2] then
    return {1}
  end
  if head[2] ~= ARGV[4] or head[3] ~= ARGV[5] then
    return {5, head[2], head[3]}
  end
  redis.call('HSET', KEYS[2], 'incarnation', ARGV[3])
  redis.call('HSET', KEYS[1], 'incarnation', ARGV[3], 'created_ms', ARGV[6],
    'spec', ARGV[7], 'given', ARGV[8])
  return {0}
end
if task == 'discard' then
  if redis.call('HGET', KEYS[2], 'incarnation') == ARGV[2] then
    remove()
  end
  return {0}
end
if task == 'get' or task == 'create' or existing[1] == 4 then
  return existing
end
if task == 'replace' then
  if existing[3] ~= ARGV[2] or existing[7] ~= ARGV[3] or existing[8] ~= ARGV[4] then
    return {5, existing[7], existing[8]}
  end
  remove()
  return create(ARGV[5], ARGV[6], ARGV[7], ARGV[8], ARGV[9], ARGV[10])
end
if ARGV[2] ~= '' and existing[3] ~= ARGV[2] then
  return {1}
end
if ARGV[3] ~= '' and (existing[7] ~= ARGV[3] or existing[8] ~= ARGV[4]) then
  return {5, existing[7], existing[8]}
end
remove()
audit(existing[3], tonumber(existing[7]), ARGV[5], ARGV[6])
return {0}
