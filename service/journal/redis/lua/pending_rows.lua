-- Pending rows: rows that wait for labels.
--
-- KEYS: head, waits, waitq, keys
-- ARGV: task, incarnation, then
--   keep   how long rows without a default label wait (ms), maximum rows, maximum bytes, how long
--          keys are kept (ms), then for each row its key, how long it waits for its default label
--          (ms), its default label or "", the row
--          Returns {0, how many of them wait now}, {8, how many wait} if there are too many.
--   find   the keys   Returns {0, ms now, stored value or "" for each, ...}
--   sum    Returns {0, incarnation, how many wait, 1 if any is due, 1 if there are any}, for every
--          incarnation.
--   forget the key of a labelled row to delete   Returns {0}
--   due    how long expired rows stay known (ms), maximum rows to return
--          Returns {0, ms now, how many expired now, key, stored value, ...}
-- All: {1} another incarnation.

local EXPIRED_AT_ONCE = 1000

local task = ARGV[1]
local head = redis.call('HMGET', KEYS[1], 'incarnation', 'waiting', 'waiting_bytes')
local time_ms = now_ms()

if task == 'sum' then
  local first = redis.call('ZRANGE', KEYS[3], 0, 0, 'WITHSCORES')
  local is_due = first[2] and tonumber(first[2]) <= time_ms
  return {0, head[1] or '', tonumber(head[2] or 0), is_due and 1 or 0, first[1] and 1 or 0}
end
if head[1] ~= ARGV[2] then
  return {1}
end

if task == 'keep' then
  local rows, bytes, added, count = tonumber(head[2] or 0), tonumber(head[3] or 0), {}, 0
  local oldest_ms, is_known, is_labelled = time_ms - tonumber(ARGV[6]), {}, {}
  for at = 7, #ARGV, 4 do
    local key = ARGV[at]
    if not added[key] then
      local known = redis.call('HGET', KEYS[4], key)
      is_known[key] = known and struct.unpack('<I8', known, 17) > oldest_ms
      local stored = redis.call('HGET', KEYS[2], key)
      if stored then
        local _, due_ms, _, row, _, seq = waiting_row(stored)
        is_labelled[key] = seq and due_ms > time_ms
        if row ~= '' and not is_labelled[key] then
          rows, bytes = rows - 1, bytes - (#key + #stored - 20)
        end
      end
      is_known[key] = is_known[key] or is_labelled[key]
      added[key] = 0
      if not is_known[key] then
        rows, count = rows + 1, count + 1
      end
    end
    if not is_known[key] then
      bytes = bytes - added[key]
      added[key] = #key + #ARGV[at + 2] + #ARGV[at + 3]
      bytes = bytes + added[key]
    end
  end
  if rows > tonumber(ARGV[4]) or bytes > tonumber(ARGV[5]) then
    return {8, tonumber(head[2] or 0)}
  end
  for at = 7, #ARGV, 4 do
    local key, default = ARGV[at], ARGV[at + 2]
    if is_known[key] then
      if not is_labelled[key] then
        redis.call('HDEL', KEYS[2], key)
        redis.call('ZREM', KEYS[3], key)
      end
    else
      local due_ms = time_ms + tonumber(default ~= '' and ARGV[at + 1] or ARGV[3])
      keep_waiting_row(KEYS[2], KEYS[3], key, time_ms, due_ms, default, ARGV[at + 3])
    end
  end
  count_waiting(KEYS[1], rows - tonumber(head[2] or 0), bytes - tonumber(head[3] or 0))
  return {0, count}
end

if task == 'find' then
  local found = {0, time_ms}
  for at = 3, #ARGV do
    found[at] = redis.call('HGET', KEYS[2], ARGV[at]) or ''
  end
  return found
end

if task == 'forget' then
  local stored = redis.call('HGET', KEYS[2], ARGV[3])
  if stored and select('#', waiting_row(stored)) > 4 then
    delete_waiting_row(KEYS[1], KEYS[2], KEYS[3], ARGV[3], math.huge)
  end
  return {0}
end

-- due
local found, expired, deleted, free = {0, time_ms, 0}, 0, 0, tonumber(ARGV[4])
-- Rows with a default label stay until they get it, so skip those already returned.
local until_now = string.format('%.0f', time_ms)
local at = 0
while expired + deleted < EXPIRED_AT_ONCE do
  local keys = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', until_now, 'LIMIT', at, 100)
  if #keys == 0 then
    break
  end
  for _, key in ipairs(keys) do
    local stored = redis.call('HGET', KEYS[2], key)
    local kept_ms, due_ms, default, row, _, seq = waiting_row(stored)
    if seq then
      delete_waiting_row(KEYS[1], KEYS[2], KEYS[3], key, time_ms)
      deleted = deleted + 1
    elseif default ~= '' then
      at = at + 1
      if free > 0 then
        found[#found + 1] = key
        found[#found + 1] = stored
        free = free - 1
      end
    elseif row ~= '' then
      expired = expired + 1
      due_ms = due_ms + tonumber(ARGV[3])
      redis.call('HSET', KEYS[2], key, struct.pack('<I8I8I4', kept_ms, due_ms, 0))
      redis.call('ZADD', KEYS[3], string.format('%.0f', due_ms), key)
      count_waiting(KEYS[1], -1, -(#key + #row))
      if due_ms <= time_ms then
        at = at + 1  -- it stays known as expired
      end
    else
      redis.call('HDEL', KEYS[2], key)
      redis.call('ZREM', KEYS[3], key)
      deleted = deleted + 1
    end
  end
  if free == 0 then
    break
  end
end
found[3] = expired
return found
