-- Storage usage of a model. KEYS: head, log, snaps   ARGV: incarnation
-- Returns {0, memory of the log, bytes of complete snapshots, ms of the first entry, ms of the first
-- entry after the newest snapshot; -1 if there is no such entry}, {1} another incarnation.

if redis.call('HGET', KEYS[1], 'incarnation') ~= ARGV[1] then
  return {1}
end

local function ms_after(seq)
  local entry = redis.call('XRANGE', KEYS[2], stream_id(seq + 1), '+', 'COUNT', 1)[1]
  return entry and struct.unpack('<I8', entry[2][2], 17) or -1
end

local bytes, saved = 0, 0
for _, snapshot in ipairs(snapshots_in(KEYS[3])) do
  if snapshot[4] >= 0 then
    saved = math.max(saved, snapshot[2])
    local key = string.sub(KEYS[3], 1, -2) .. ':' .. snapshot[1]
    for number = 0, snapshot[4] - 1 do
      bytes = bytes + redis.call('HSTRLEN', key, number)
    end
  end
end
local log = redis.call('MEMORY', 'USAGE', KEYS[2]) or 0
log = log + (redis.call('HGET', KEYS[1], 'bodies_bytes') or 0)
return {0, log, bytes, ms_after(0), ms_after(saved)}
