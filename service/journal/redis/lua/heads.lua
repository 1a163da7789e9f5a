-- Read heads. KEYS: the heads of some models
-- Returns "incarnation seq chain" of each, one per line, empty for an unknown model. One string,
-- because Python is slow at reading an array of many.

local lines = {}
for number, key in ipairs(KEYS) do
  local head = redis.call('HMGET', key, 'incarnation', 'seq', 'chain')
  lines[number] = head[1] and head[2] and head[3] and table.concat(head, ' ') or ''
end
return table.concat(lines, '\n')
