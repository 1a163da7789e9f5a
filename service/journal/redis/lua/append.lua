-- Append to a model's log, in one atomic step; see Journal.append.
--
-- KEYS: head, log, nonces, nonceq, keys, keyq, cursors; then audit if there is a change
-- ARGV:
--   1 incarnation
--   2 nonce
--   3 known seq
--   4 bodies, concatenated; "" if the body is in ds:{ID}:body:NONCE (parts without keys, or one part)
--   5 number of records in the bodies
--   6 "" if no part can be skipped, else msgpack with five numbers for each part: records, bytes,
--     bytes of the key, bytes of the fingerprint, role (0, 1 opens a request by its key,
--     2 continues one; plus 4 if it opens an all-or-nothing request, plus 8 if it has a pending row,
--     plus 16 if its label is revisable)
--   7 keys and fingerprints, concatenated
--   8 name of the cursor to move, or ""
--   9 "=" and its expected value, or "" for no value
--   10 "=" and its new value, or "" to delete it
--   11 how long keys are kept (ms)
--   12 maximum number of keys
--   13 maximum number of nonces
--   14 maximum bytes of unseen entries in the answer
--   15 absent, or digest of the copy to which the entry refers, or ""
--   16 absent, "", or a change for the audit log
--   17 how long changes are kept (ms)
--   18, 19 absent, "", or the seq and chain from which the log must continue, or where it must end
--   20, 21 absent, "", or for a repeated append the seq and chain after which it was first sent
--   22 absent, or how long rows without a default label wait (ms), and labelled rows are kept
--   23, 24 maximum number and bytes of pending rows; then for each part with a pending row how long
--     it waits for its default label (ms), its default label or "", the row; for each part with a
--     revisable label the label, what is stored behind it, what the row must have or "", and the seq
--     of that, below 0 if counted back from the part's own
-- Returns one string, because Python reads an array more slowly than Redis appends: u64 last seq of
--   the unseen entries, u64 trimmed, u32 bytes of the result, the result as stored under the
--   nonce, the unseen entries. Or {1} another incarnation, {2, value} the cursor has another value,
--   {5} the log does not contain the position of 18, {6} no such copy, {7, how many wait} too many
--   pending rows, {8} no body under the nonce, {9} a repeated append whose outcome the log cannot show.
-- The streams are written first: if Redis refuses the write (no memory), nothing was done.

local PURGE_KEYS = 64
local LABEL = 4  -- kind byte of a label's key
local NONCES_KEPT_S = 86400  -- after the last append, so that an idle model's nonces expire

local head = redis.call('HMGET', KEYS[1], 'incarnation', 'seq', 'chain', 'trimmed')
if head[1] ~= ARGV[1] then
  return {1}
end
local nonce, before, trimmed = ARGV[2], tonumber(head[2]), tonumber(head[4])

-- Name of a key that few appends need.
local function key_of(name)
  return string.sub(KEYS[1], 1, -#'head' - 1) .. name
end

-- Deduplicate the parts: bodies of the new ones, last seq, skipped parts, keys to store, labels,
-- pending rows to store, each as its key and the place of its arguments; labels of rows that stay
-- stored, each as its key, the label and its seq.
local function sort(parts, time_ms)
  local kept, left, keys, order, labels = {}, {}, {}, {}, {}
  local waiting, is_waiting, row_at = {}, {}, 25
  local relabelled, label_of = {}, {}
  local seq, at, key_at = before, 1, 1
  local oldest_ms = time_ms - tonumber(ARGV[11])

  local function known(key)
    if keys[key] then
      return keys[key]
    end
    local stored = redis.call('HGET', KEYS[5], key)
    if not stored then
      return nil
    end
    local last, records, kept_ms = struct.unpack('<I8I8I8', stored)
    if kept_ms <= oldest_ms then
      return nil
    end
    return {last, records, string.sub(stored, 25)}
  end

  local function keep(key, records, mark, last)
    if not keys[key] then
      order[#order + 1] = key
    end
    keys[key] = {last or seq, records, mark}
  end

  -- The seq of a request without new rows: of its last known row, or nil without any.
  local function last_known(first)
    local last
    for number = first, #left do
      if not left[number][4] then
        last = math.max(last or 0, left[number][2])
      end
    end
    return last
  end

  -- Skips part number (from 0); true unless its fingerprint differs.
  local function skip(number, mark, found)
    local is_conflict = mark ~= found[3]
    left[#left + 1] = {number, found[1], found[2], is_conflict}
    return not is_conflict
  end

  -- The current request, if its parts belong together.
  local opening, found, is_whole, before_it, is_accepted, is_alone, has_conflict

  local function truncate(list, length)
    for number = #list, length + 1, -1 do
      list[number] = nil
    end
  end

  -- Journals nothing of the request, but keeps its conflicts for the answer. A conflict with another
  -- row of the same request gets an empty position, as that row is not journalled either.
  local function undo()
    seq = before_it.seq
    truncate(kept, before_it.kept)
    truncate(labels, before_it.labels)
    for number = before_it.waiting + 1, #waiting do
      is_waiting[waiting[number][1]] = nil
    end
    truncate(waiting, before_it.waiting)
    for number = before_it.order + 1, #order do
      keys[order[number]] = nil
    end
    truncate(order, before_it.order)
    local length = before_it.left
    for number = before_it.left + 1, #left do
      local one = left[number]
      if one[4] then
        length = length + 1
        left[length] = one[2] <= seq and one or {one[1], seq, 0, true}
      end
    end
    truncate(left, length)
  end

  -- Keeps a part with a pending row unless its label is known or a row is stored already.
  local function take_waiting(number, records, body, key)
    local twin = known(key)
    if twin then
      left[#left + 1] = {number, twin[1], twin[2], false}
    elseif is_waiting[key] or redis.call('HEXISTS', key_of('waits'), key) == 1 then
      left[#left + 1] = {number, seq, 0, false}
    else
      is_waiting[key] = true
      waiting[#waiting + 1] = {key, row_at}
      seq = seq + records
      kept[#kept + 1] = body
    end
    is_accepted = true
  end

  -- The stored value because of which a revisable label is skipped; nil if it is journalled.
  local function known_label(key, mark, own, label, replaces, replaced)
    local row = label_of[key] or row_label(key_of('waits'), key, time_ms)
    if not row then
      return known(key) or (replaces ~= '' and {seq, 0, ''} or nil)
    end
    local is_same = string.sub(row[1], 1, #label) == label
    if replaced <= 0 then
      replaced = own + replaced
    end
    if row[1] ~= replaces or row[2] ~= replaced or is_same then
      return {row[2], 1, is_same and mark or ''}
    end
  end

  local function close_request()
    if opening and not found then
      if is_whole and has_conflict then
        undo()
      else
        if seq == before_it.seq then
          truncate(kept, before_it.kept)
        end
        if (is_accepted or is_alone) and opening.key then
          local last = seq == before_it.seq and last_known(before_it.left + 1) or nil
          keep(opening.key, seq - before_it.seq, opening.mark, last)
        end
      end
    end
    opening = nil
  end

  for field = 1, #parts, 5 do
    local records, bytes, key_bytes, mark_bytes, role = unpack(parts, field, field + 4)
    local number, opens, has_row = (field - 1) / 5, role % 4 == 1, role % 16 >= 8
    local is_revisable = role >= 16
    role = role % 8
    local body = string.sub(ARGV[4], at, at + bytes - 1)
    local key = string.sub(ARGV[7], key_at, key_at + key_bytes - 1)
    local mark = string.sub(ARGV[7], key_at + key_bytes, key_at + key_bytes + mark_bytes - 1)
    at, key_at = at + bytes, key_at + key_bytes + mark_bytes
    if role == 2 then
      is_alone = false
    else
      close_request()
      if role > 0 then
        opening, found = {key = opens and key, mark = mark}, opens and known(key)
        is_whole, is_accepted, is_alone, has_conflict = role >= 4, records > 0, true, false
        before_it = {seq = seq, kept = #kept, left = #left, order = #order, labels = #labels,
          waiting = #waiting}
      end
    end
    if opening and found then
      skip(number, opening.mark, found)
    elseif has_row then
      take_waiting(number, records, body, key)
    else
      if string.byte(key) == LABEL and not is_revisable then
        labels[#labels + 1] = key
      end
      local twin
      if is_revisable then
        local label, _, replaces, replaced = unpack(ARGV, row_at, row_at + 3)
        twin = known_label(key, mark, seq + records, label, replaces, tonumber(replaced))
      else
        twin = not opens and key ~= '' and known(key)
      end
      if twin then
        if skip(number, mark, twin) then
          is_accepted = true
        else
          has_conflict = true
        end
      else
        seq = seq + records
        kept[#kept + 1] = body
        is_accepted = is_accepted or records > 0
        if not opens and key ~= '' then
          keep(key, records, mark)
        end
        if is_revisable then
          local label = ARGV[row_at] .. ARGV[row_at + 1]
          label_of[key] = {label, seq}
          relabelled[#relabelled + 1] = {key, label, seq}
        end
      end
    end
    row_at = row_at + (has_row and 3 or 0) + (is_revisable and 4 or 0)
  end
  close_request()
  return table.concat(kept), seq, left, keys, order, labels, waiting, relabelled
end

-- Stores new keys; deletes some that are expired or in excess, to bound the cost of one append.
local function keep_keys(keys, order, time_ms)
  for _, key in ipairs(order) do
    local seq, records, mark = unpack(keys[key])
    redis.call('HSET', KEYS[5], key, struct.pack('<I8I8I8', seq, records, time_ms) .. mark)
    redis.call('RPUSH', KEYS[6], struct.pack('<I8', time_ms) .. key)
  end
  redis.call('PEXPIRE', KEYS[5], ARGV[11])
  redis.call('PEXPIRE', KEYS[6], ARGV[11])
  local oldest_ms = time_ms - tonumber(ARGV[11])
  local too_many = redis.call('LLEN', KEYS[6]) - tonumber(ARGV[12])
  for _ = 1, PURGE_KEYS + 4 * #order do
    local first = redis.call('LINDEX', KEYS[6], 0)
    local kept_ms = first and struct.unpack('<I8', first)
    if not first or (too_many <= 0 and kept_ms > oldest_ms) then
      break
    end
    redis.call('LPOP', KEYS[6])
    too_many = too_many - 1
    -- a key stored again after its expiry has another, later item in the list
    local key = string.sub(first, 9)
    local stored = redis.call('HGET', KEYS[5], key)
    if stored and struct.unpack('<I8', stored, 17) == kept_ms then
      redis.call('HDEL', KEYS[5], key)
    end
  end
end

-- Stores the result under the nonce; deletes the oldest.
local function keep_nonce(result)
  redis.call('HSET', KEYS[3], nonce, result)
  if redis.call('LPUSH', KEYS[4], nonce) > tonumber(ARGV[13]) then
    redis.call('HDEL', KEYS[3], redis.call('RPOP', KEYS[4]))
  end
  redis.call('EXPIRE', KEYS[3], NONCES_KEPT_S)
  redis.call('EXPIRE', KEYS[4], NONCES_KEPT_S)
end

local MAX_SEARCHED = 10000  -- entries: other commands wait for the search
local SEARCHED = 64

-- Result of a nonce that is no longer kept, searched in the log after a position; nil if the nonce was
-- not used. Returns {9} if the log cannot show it: it does not contain the position, too many entries
-- follow, or parts were skipped and the log does not say which.
local function find_in_log(seq, chain)
  local is_restored = redis.call('HEXISTS', KEYS[1], 'restored') == 1
  if not is_restored and redis.call('LLEN', KEYS[4]) < tonumber(ARGV[13]) then
    return nil  -- all nonces are still kept
  end
  if not leads_on_from(KEYS[2], {head[2], head[3]}, seq, chain) then
    return nil, {9}
  end
  for _ = 1, MAX_SEARCHED / SEARCHED do
    local batch = redis.call('XRANGE', KEYS[2], stream_id(seq + 1), '+', 'COUNT', SEARCHED)
    for _, item in ipairs(batch) do
      local entry = item[2][2]
      if string.sub(entry, 25, 40) == nonce then
        local first, records = struct.unpack('<I8I4', entry)
        if records ~= tonumber(ARGV[5]) then
          return nil, {9}
        end
        return cmsgpack.pack({first - 1, first - 1 + records, chain, {}})
      end
      seq, chain = seq_of(item), string.sub(entry, 41, 80)
    end
    if #batch < SEARCHED then
      return nil
    end
  end
  return nil, {9}
end

-- Number of pending rows, and number and bytes with those to store; true if these are too many.
local function with_waiting(waiting)
  local sums = redis.call('HMGET', KEYS[1], 'waiting', 'waiting_bytes')
  local before, bytes = tonumber(sums[1] or 0), 0
  for _, one in ipairs(waiting) do
    bytes = bytes + #one[1] + #ARGV[one[2] + 1] + #ARGV[one[2] + 2]
  end
  local is_full = before + #waiting > tonumber(ARGV[23])
    or tonumber(sums[2] or 0) + bytes > tonumber(ARGV[24])
  return before, bytes, is_full
end

local function keep_waiting_rows(waiting, bytes, time_ms)
  for _, one in ipairs(waiting) do
    local key, wait_ms, default, row = one[1], unpack(ARGV, one[2], one[2] + 2)
    local due_ms = time_ms + tonumber(default ~= '' and wait_ms or ARGV[22])
    keep_waiting_row(key_of('waits'), key_of('waitq'), key, time_ms, due_ms, default, row)
  end
  count_waiting(KEYS[1], #waiting, bytes)
end

local function append_new()
  local body_key = ARGV[4] == '' and ARGV[5] ~= '0' and key_of('body:' .. nonce)
  local stored_bytes = body_key and redis.call('STRLEN', body_key)
  if stored_bytes == 0 then
    return nil, {8}
  end
  if ARGV[8] ~= '' then
    local value = redis.call('HGET', KEYS[7], ARGV[8])
    if (value and '=' .. value or '') ~= ARGV[9] then
      return nil, {2, value}
    end
  end
  local time_ms = now_ms()
  local body, seq, left, keys, order, labels = ARGV[4], before + tonumber(ARGV[5]), {}, nil, {}, {}
  local waiting, waiting_bytes, relabelled = {}, 0, {}
  if ARGV[6] ~= '' then
    body, seq, left, keys, order, labels, waiting, relabelled = sort(cmsgpack.unpack(ARGV[6]), time_ms)
  end
  local has_place = seq > before and (ARGV[18] or '') ~= ''
  if has_place and not leads_on_from(KEYS[2], {head[2], head[3]}, tonumber(ARGV[18]), ARGV[19]) then
    return nil, {5}
  end
  local copy = seq > before and ARGV[15] ~= '' and ARGV[15]
  if copy and string.sub(redis.call('HGET', key_of('copies'), copy) or '', -2) ~= ' 1' then
    return nil, {6}
  end
  if copy then
    -- Accessed before anything is written: in a slot being moved it may be on the other node.
    redis.call('EXISTS', key_of('uses'))
  end
  if #waiting > 0 then
    local rows, bytes, is_full = with_waiting(waiting)
    if is_full then
      return nil, {7, rows}
    end
    waiting_bytes = bytes
  end
  if #labels + #waiting + #relabelled > 0 then
    redis.call('EXISTS', key_of('waits'), key_of('waitq'))  -- as above
  end
  local change = (seq > before or ARGV[5] == '0') and ARGV[16] ~= '' and ARGV[16]
  if seq > before then
    local chain = redis.sha1hex(head[3] .. nonce)
    local bytes = stored_bytes or #body
    local entry = struct.pack('<I8I4I4I8', before + 1, seq - before, bytes, time_ms)
    redis.call('XADD', KEYS[2], stream_id(seq), 'e', entry .. nonce .. chain .. body)
    if body_key then
      redis.call('PERSIST', body_key)
      redis.call('ZADD', key_of('bodies'), string.format('%.0f', seq), nonce)
      redis.call('HINCRBY', KEYS[1], 'bodies_bytes', bytes)
    end
    redis.call('HSET', KEYS[1], 'seq', seq, 'chain', chain)
    if copy then
      redis.call('ZADD', key_of('uses'), seq, string.format('%.0f ', seq) .. copy)
    end
  elseif body_key then
    redis.call('UNLINK', body_key)
  end
  if change then
    keep_change(KEYS[8], ARGV[1], seq, change, ARGV[17])
  end
  local result = cmsgpack.pack({before, seq, head[3], left})
  keep_nonce(result)
  if #order > 0 then
    keep_keys(keys, order, time_ms)
  end
  if #waiting > 0 then
    keep_waiting_rows(waiting, waiting_bytes, time_ms)
  end
  for _, one in ipairs(relabelled) do
    local due_ms = time_ms + tonumber(ARGV[22])
    relabel_row(KEYS[1], key_of('waits'), key_of('waitq'), one[1], one[2], one[3], due_ms)
  end
  for _, key in ipairs(labels) do
    delete_waiting_row(KEYS[1], key_of('waits'), key_of('waitq'), key, time_ms)
  end
  if ARGV[8] ~= '' and ARGV[10] == '' then
    redis.call('HDEL', KEYS[7], ARGV[8])
  elseif ARGV[8] ~= '' then
    redis.call('HSET', KEYS[7], ARGV[8], string.sub(ARGV[10], 2))
  end
  return result
end

local result = redis.call('HGET', KEYS[3], nonce)
if not result then
  local refusal
  if (ARGV[20] or '') ~= '' then
    result, refusal = find_in_log(tonumber(ARGV[20]), ARGV[21])
  end
  if result then
    keep_nonce(result)
  elseif not refusal then
    result, refusal = append_new()
  end
  if refusal then
    return refusal
  end
else
  -- A write, so that a WAIT after it covers the first append, too.
  redis.call('HSET', KEYS[3], nonce, result)
end
local known_seq, unseen, last = tonumber(ARGV[3]), '', tonumber(ARGV[3])
local through = cmsgpack.unpack(result)[1]
if known_seq >= trimmed and known_seq < through then
  local texts
  texts, last = entries_after(KEYS[2], known_seq, through, tonumber(ARGV[14]))
  unseen = table.concat(texts)
end
return struct.pack('<I8I8I4', last, trimmed, #result) .. result .. unseen
