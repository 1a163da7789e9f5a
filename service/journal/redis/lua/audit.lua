-- Merge changes into a model's audit log, in the order of their times; skip those it already has.
-- A stream only accepts ids after its last one, so it is rewritten if a change belongs before that.
--
-- KEYS: audit, audit:anew   ARGV: how long changes are kept (ms), then for each change id,
--   incarnation, seq, JSON
-- Returns {0}.

local function made(order, id, incarnation, seq, change)
  local ms, number = string.match(id, '^(%d+)-(%d+)$')
  return {ms = tonumber(ms), number = tonumber(number), order = order,
    i = incarnation, s = seq, c = change}
end

local function is_before(one, other)
  if one.ms ~= other.ms then
    return one.ms < other.ms
  end
  if one.number ~= other.number then
    return one.number < other.number
  end
  return one.order < other.order
end

-- Appends a change after `last`, and returns it.
local function add(key, change, last)
  if last and change.ms == last.ms and change.number <= last.number then
    change.number = last.number + 1
  end
  local id = string.format('%.0f-%.0f', change.ms, change.number)
  redis.call('XADD', key, id, 'i', change.i, 's', change.s, 'c', change.c)
  return change
end

local function parse(item)
  local fields = {}
  for at = 1, #item[2], 2 do
    fields[item[2][at]] = item[2][at + 1]
  end
  return made(0, item[1], fields.i, fields.s, fields.c)
end

local function merge(given)
  local all, known = {}, {}
  local function text_of(change)
    return table.concat({string.format('%.0f', change.ms), change.i, change.s, change.c}, ' ')
  end
  for _, item in ipairs(redis.call('XRANGE', KEYS[1], '-', '+')) do
    local change = parse(item)
    local text = text_of(change)
    known[text] = (known[text] or 0) + 1
    all[#all + 1] = change
  end
  local before = #all
  for _, change in ipairs(given) do
    local text = text_of(change)
    local count = known[text] or 0
    if count > 0 then
      known[text] = count - 1
    else
      all[#all + 1] = change
    end
  end
  if #all == before then
    return
  end
  table.sort(all, is_before)
  redis.call('DEL', KEYS[2])
  local last
  for _, change in ipairs(all) do
    last = add(KEYS[2], change, last)
  end
  redis.call('RENAME', KEYS[2], KEYS[1])
end

local given, are_behind = {}, true
local newest = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
newest = newest and parse(newest)
for at = 2, #ARGV, 4 do
  local change = made(#given + 1, unpack(ARGV, at, at + 3))
  if newest and (change.ms < newest.ms or (change.ms == newest.ms and change.number <= newest.number)) then
    are_behind = false
  end
  given[#given + 1], newest = change, change
end
if are_behind then
  for _, change in ipairs(given) do
    add(KEYS[1], change)
  end
else
  merge(given)
end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return {0}
