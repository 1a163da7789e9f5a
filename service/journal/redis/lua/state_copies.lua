-- State copies, and the versions that name them.
--
-- KEYS: head, copies, versions, uses, the copy's own, audit   ARGV: task, incarnation, then
--   begin     digest, bytes, parts   Returns {0, 1 if it is complete already}
--   part      digest, part number, its bytes   Returns {0, 1 unless it was collected}
--   complete  digest   Returns {0, 1 unless a part is missing}
--   find      digest   Returns {0, parts}, or {0}
--   piece     part number   Returns {0, its bytes or nil}
--   list      1 to include incomplete ones   Returns {0, digest, bytes, ...}
--   uses      Returns {0, "seq digest", ...}, ordered by seq
--   delete    digest   Returns {0}, {5} if something refers to it
--   collect   how long copies stay without a name (ms)   Returns {0}
--   name      name, digest, ms or 0, text before and after the ms in a version, maximum number of
--             versions, absent or a change and how long it is kept (ms)
--             Returns {0, 1 if it is new, version}, {5} the name refers to another copy, {6} no such
--             copy, {7} too many, {8} ms is 0 and the log does not contain the version's position
--   version   name   Returns {0, version or nil}
--   versions  Returns {0, name, version, ...}
--   unname    name, absent or a change and how long it is kept (ms)   Returns {0, 1 if it existed}
-- All: {1} another incarnation.

local task = ARGV[1]
if redis.call('HGET', KEYS[1], 'incarnation') ~= ARGV[2] then
  return {1}
end

local function key_of(name)
  return string.sub(KEYS[2], 1, -#'copies' - 1) .. name
end

-- bytes, parts, ms of the last write, 1 if complete
local function find(digest)
  local stored = redis.call('HGET', KEYS[2], digest)
  if stored then
    local bytes, parts, touched_ms, done = string.match(stored, '^(%d+) (%d+) (%d+) (%d)$')
    return tonumber(bytes), tonumber(parts), tonumber(touched_ms), tonumber(done)
  end
end

local function keep(digest, bytes, parts, done)
  local value = string.format('%.0f %.0f %.0f %d', bytes, parts, now_ms(), done)
  redis.call('HSET', KEYS[2], digest, value)
end

local function remove(digest)
  redis.call('HDEL', KEYS[2], digest)
  redis.call('UNLINK', key_of('copy:' .. digest))
end

local function digest_of(version)
  return string.match(version, '^%d+ %x+ (%x+)')
end

-- Digests to which a version or a kept record refers.
local function named()
  local found = {}
  for _, version in ipairs(redis.call('HVALS', KEYS[3])) do
    found[digest_of(version)] = true
  end
  for _, use in ipairs(redis.call('ZRANGE', KEYS[4], 0, -1)) do
    found[string.match(use, '%x+$')] = true
  end
  return found
end

if task == 'begin' then
  local digest, _, _, _, done = ARGV[3], find(ARGV[3])
  keep(digest, tonumber(ARGV[4]), tonumber(ARGV[5]), done or 0)
  return {0, done or 0}
end

if task == 'part' or task == 'complete' then
  local bytes, parts, _, done = find(ARGV[3])
  if not bytes then
    return {0, 0}
  end
  if task == 'part' then
    redis.call('HSET', KEYS[5], ARGV[4], ARGV[5])
  elseif redis.call('HLEN', KEYS[5]) == parts then
    done = 1
  end
  keep(ARGV[3], bytes, parts, done)
  return {0, task == 'part' and 1 or done}
end

if task == 'find' then
  local _, parts, _, done = find(ARGV[3])
  return done == 1 and {0, parts} or {0}
end

if task == 'piece' then
  return {0, redis.call('HGET', KEYS[5], ARGV[3])}
end

if task == 'list' then
  local found = {0}
  for _, digest in ipairs(redis.call('HKEYS', KEYS[2])) do
    local bytes, _, _, done = find(digest)
    if done == 1 or ARGV[3] == '1' then
      found[#found + 1] = digest
      found[#found + 1] = bytes
    end
  end
  return found
end

-- {0, item, ...} without unpack: Lua's stack holds at most 8000 values.
local function answer_of(items)
  table.insert(items, 1, 0)
  return items
end

if task == 'uses' then
  return answer_of(redis.call('ZRANGE', KEYS[4], 0, -1))
end

if task == 'delete' then
  if named()[ARGV[3]] then
    return {5}
  end
  remove(ARGV[3])
  return {0}
end

if task == 'collect' then
  local trimmed = redis.call('HGET', KEYS[1], 'trimmed')
  local freed = redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', trimmed)
  redis.call('ZREMRANGEBYSCORE', KEYS[4], '-inf', trimmed)
  local kept, oldest_ms = named(), now_ms() - tonumber(ARGV[3])
  for _, use in ipairs(freed) do
    local digest = string.match(use, '%x+$')
    if not kept[digest] then
      remove(digest)
    end
  end
  for _, digest in ipairs(redis.call('HKEYS', KEYS[2])) do
    local _, _, touched_ms = find(digest)
    if touched_ms <= oldest_ms and not kept[digest] then
      remove(digest)
    end
  end
  return {0}
end

if task == 'name' then
  local name, digest, known = ARGV[3], ARGV[4], redis.call('HGET', KEYS[3], ARGV[3])
  if known then
    return digest_of(known) == digest and {0, 0, known} or {5}
  end
  local seq, chain = string.match(ARGV[6], '^(%d+) (%x+)')
  local place = redis.call('HMGET', KEYS[1], 'seq', 'chain')
  if ARGV[5] == '0' and not leads_on_from(key_of('log'), place, tonumber(seq), chain) then
    return {8}
  end
  local _, _, _, done = find(digest)
  if done ~= 1 then
    return {6}
  end
  if redis.call('HLEN', KEYS[3]) >= tonumber(ARGV[8]) then
    return {7}
  end
  local created_ms = ARGV[5] == '0' and string.format('%.0f', now_ms()) or ARGV[5]
  local version = ARGV[6] .. ' ' .. created_ms .. ' ' .. ARGV[7]
  redis.call('HSET', KEYS[3], name, version)
  if ARGV[9] then
    keep_change(KEYS[6], ARGV[2], tonumber(seq), ARGV[9], ARGV[10])
  end
  return {0, 1, version}
end

if task == 'version' then
  return {0, redis.call('HGET', KEYS[3], ARGV[3])}
end

if task == 'versions' then
  return answer_of(redis.call('HGETALL', KEYS[3]))
end

-- unname
local version = redis.call('HGET', KEYS[3], ARGV[3])
if not version then
  return {0, 0}
end
redis.call('HDEL', KEYS[3], ARGV[3])
local digest = digest_of(version)
if not named()[digest] then
  remove(digest)
end
if ARGV[4] then
  local seq = tonumber(redis.call('HGET', KEYS[1], 'seq'))
  keep_change(KEYS[6], ARGV[2], seq, ARGV[4], ARGV[5])
end
return {0, 1}
