-- Prepended to every script. Keys of a model, all under the hash tag of its id, so that they are
-- in one slot:
--
--   ds:{ID}:spec     hash    incarnation, created_ms, spec, given
--   ds:{ID}:head     hash    incarnation, seq and chain of the last entry, trimmed = last seq that is
--                            no longer kept; restored = 1 for a model from an archive: the nonces
--                            of its older entries are not kept
--   ds:{ID}:log      stream  one entry per append, id <seq of its last record>-0; field e: u64 first
--                            seq, u32 records, u32 bytes of the body, u64 ms, nonce (16), chain (40),
--                            body; little-endian. A long body is in a key of its own:
--   ds:{ID}:body:NONCE  string  a long body, sent before the script that journals it, because Lua
--                            copies and hashes every string; expires unless it is journalled
--   ds:{ID}:bodies   sorted set  nonces of journalled long bodies, by the last seq of their entry;
--                            head's bodies_bytes is the size of these bodies
--   ds:{ID}:log:anew          the rewritten log, during one script
--   ds:{ID}:nonces   hash    nonce -> msgpack {seq before, seq after, chain before, skipped parts}
--   ds:{ID}:nonceq   list    the nonces, newest first
--   ds:{ID}:keys     hash    kind byte and key -> u64 seq, u64 records, u64 ms, fingerprint (16 or 0)
--   ds:{ID}:keyq     list    u64 ms, kind byte and key; oldest first
--   ds:{ID}:cursors  hash    name -> value
--   ds:{ID}:snaps    hash    token -> "seq chain parts"; parts is -1 until the snapshot is complete
--   ds:{ID}:snap:TOKEN  hash  part number, from 0 -> up to 1 MiB of the snapshot
--   ds:{ID}:copies   hash    digest -> "bytes parts ms complete": ms of the last write; complete is 1
--                            once all parts are stored
--   ds:{ID}:copy:DIGEST  hash  part number, from 0 -> up to 1 MiB of the copy
--   ds:{ID}:versions hash    name -> "seq chain digest bytes ms note"
--   ds:{ID}:uses     sorted set  "seq digest", by seq: kept entries that refer to a copy
--   ds:{ID}:waits    hash    kind byte and key of a label -> u64 ms stored, u64 ms due, u32 bytes of
--                            the default label, the default label, the row; an empty row without
--                            a default label has expired. Of a labelled row: u32 bytes of the label
--                            plus 2^31, u64 seq of the label, the label, the row
--   ds:{ID}:waitq    sorted set  the same keys, by ms due; head's waiting and waiting_bytes are the
--                            number and size of those with a row
--   ds:{ID}:audit    stream  one entry per change, which outlives the model; i incarnation, s seq,
--                            c JSON of the change
--   ds:{ID}:audit:anew        the rewritten audit log, during one script
--
-- Keys of the store:
--
--   ds:models        sorted set  ids, all of score 0; written after ds:{ID}:spec, removed last
--   ds:waiting       set         ids of models with rows in ds:{ID}:waits; written after these
--   ds:audited       sorted set  ids of models with ds:{ID}:audit, by ms of its last write; written
--                            before it
--   ds:rate:NAME:UNIT  string    thousandths in a token bucket, and their time (ms); expires once full
--   ds:identity      string      the numeric identity in force
--
-- Numbers in Lua are doubles: exact up to 2^53, which no seq reaches. Concatenation formats them as
-- %.14g, so ids are made by stream_id.

local function stream_id(seq)
  return string.format('%.0f-0', seq)
end

local function seq_of(item)
  return tonumber(string.match(item[1], '^%d+'))
end

local function now_ms()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

local HEAD_BYTES = 80  -- of an entry

-- Bytes of an entry, and the key of its body if that is stored separately.
local function parts_of(log, entry)
  local bytes = #entry == HEAD_BYTES and struct.unpack('<I4', entry, 13) or 0
  if bytes == 0 then
    return #entry
  end
  return #entry + bytes, string.sub(log, 1, -#'log' - 1) .. 'body:' .. string.sub(entry, 25, 40)
end

local FETCHED = 64

-- Entries (80 bytes and a body) with after < last seq <= through, up to limit bytes, at least one if
-- any, as a list of strings to be concatenated; and the last seq among them. The size of a batch
-- follows the mean entry size so far. The strings of all batches are not concatenated here: Lua's
-- buffer would copy and hash each byte every time it grows. Each batch is one string, because Python
-- is slow at reading an array of many.
local function entries_after(log, after, through, limit)
  local texts, count, size, last, step = {}, 0, 0, after, 1
  while last < through do
    local batch = redis.call('XRANGE', log, stream_id(last + 1), stream_id(through), 'COUNT', step)
    if #batch == 0 then
      break
    end
    local found = {}
    for number = 1, #batch do
      local entry = batch[number][2][2]
      local bytes, key = parts_of(log, entry)
      size = size + bytes
      if count > 0 and size > limit then
        texts[#texts + 1] = table.concat(found)
        return texts, number > 1 and seq_of(batch[number - 1]) or last
      end
      count = count + 1
      found[#found + 1] = entry
      if key then
        texts[#texts + 1] = table.concat(found)
        found = {}
        local body = redis.call('GET', key)
        if not body then  -- damaged: the reader reports a truncated entry
          return texts, seq_of(batch[number])
        end
        texts[#texts + 1] = body
      end
    end
    texts[#texts + 1] = table.concat(found)
    last = seq_of(batch[#batch])
    step = math.max(1, math.min(FETCHED, 2 * step, math.floor((limit - size) * count / size)))
  end
  return texts, last
end

-- Does the log continue from seq with this chain, or end there? head: its seq and chain.
local function leads_on_from(log, head, seq, chain)
  local following = redis.call('XRANGE', log, stream_id(seq + 1), '+', 'COUNT', 1)[1]
  if not following then
    return seq == tonumber(head[1]) and chain == head[2]
  end
  local entry = following[2][2]
  return struct.unpack('<I8', entry) == seq + 1
    and redis.sha1hex(chain .. string.sub(entry, 25, 40)) == string.sub(entry, 41, 80)
end

-- All snapshots, complete or not: {token, seq, chain, parts}, newest first; of those with one seq,
-- the one with token `first` comes first.
local function snapshots_in(snaps, first)
  local found = {}
  local stored = redis.call('HGETALL', snaps)
  for at = 1, #stored, 2 do
    local seq, chain, parts = string.match(stored[at + 1], '^(%d+) (%x+) (-?%d+)$')
    found[#found + 1] = {stored[at], tonumber(seq), chain, tonumber(parts)}
  end
  table.sort(found, function(one, other)
    return one[2] > other[2] or (one[2] == other[2] and one[1] == first and other[1] ~= first)
  end)
  return found
end

-- Complete snapshots from which the log continues, one for each seq.
local function usable_snapshots(log, snaps, head, first)
  local found = {}
  for _, snapshot in ipairs(snapshots_in(snaps, first)) do
    local last = found[#found]
    local is_other = not last or last[2] ~= snapshot[2]
    if snapshot[4] >= 0 and is_other and leads_on_from(log, head, snapshot[2], snapshot[3]) then
      found[#found + 1] = snapshot
    end
  end
  return found
end

local LABELLED = 2147483648  -- 2^31

-- Parse a pending row: ms stored, ms due, default label, row; of a labelled row its label and seq.
local function waiting_row(stored)
  local time_ms, due_ms, bytes = struct.unpack('<I8I8I4', stored)
  if bytes < LABELLED then
    return time_ms, due_ms, string.sub(stored, 21, 20 + bytes), string.sub(stored, 21 + bytes)
  end
  bytes = bytes - LABELLED
  local label, row = string.sub(stored, 29, 28 + bytes), string.sub(stored, 29 + bytes)
  return time_ms, due_ms, '', row, label, struct.unpack('<I8', stored, 21)
end

-- Label and seq of the labelled row under a key, as a list; nil if there is none that is not due.
local function row_label(waits, key, time_ms)
  local stored = redis.call('HGET', waits, key)
  if stored then
    local _, due_ms, _, _, label, seq = waiting_row(stored)
    return seq and due_ms > time_ms and {label, seq} or nil
  end
end

-- Adds to the number and bytes of a model's pending rows.
local function count_waiting(head, rows, bytes)
  redis.call('HINCRBY', head, 'waiting', rows)
  redis.call('HINCRBY', head, 'waiting_bytes', bytes)
end

-- Stores a pending row; count_waiting must count it.
local function keep_waiting_row(waits, waitq, key, time_ms, due_ms, default, row)
  local header = struct.pack('<I8I8I4', time_ms, due_ms, #default)
  redis.call('HSET', waits, key, header .. default .. row)
  redis.call('ZADD', waitq, string.format('%.0f', due_ms), key)
end

-- Keeps the row under a key as a labelled row.
local function relabel_row(head, waits, waitq, key, label, seq, due_ms)
  local stored = redis.call('HGET', waits, key)
  local kept_ms, _, _, row = waiting_row(stored or struct.pack('<I8I8I4', 0, 0, 0))
  if row ~= '' then
    local value = struct.pack('<I8I8I4I8', kept_ms, due_ms, LABELLED + #label, seq) .. label .. row
    redis.call('HSET', waits, key, value)
    redis.call('ZADD', waitq, string.format('%.0f', due_ms), key)
    count_waiting(head, 0, #value - #stored)
  end
end

-- Deletes the pending row under a key, unless it is labelled and not due.
local function delete_waiting_row(head, waits, waitq, key, time_ms)
  local stored = redis.call('HGET', waits, key)
  if stored then
    local _, due_ms, _, row, _, seq = waiting_row(stored)
    if seq and due_ms > time_ms then
      return
    end
    redis.call('HDEL', waits, key)
    redis.call('ZREM', waitq, key)
    if row ~= '' then
      count_waiting(head, -1, -(#key + #stored - 20))
    end
  end
end

-- Stores a change in the audit log; changes older than kept_ms may be deleted.
local function keep_change(key, incarnation, seq, change, kept_ms)
  local oldest_ms = string.format('%.0f', math.max(0, now_ms() - tonumber(kept_ms)))
  redis.call('XADD', key, 'MINID', oldest_ms, '*', 'i', incarnation,
    's', string.format('%.0f', seq), 'c', change)
  redis.call('PEXPIRE', key, kept_ms)
end
