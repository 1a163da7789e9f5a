-- KEYS: head of each of some models   Answers "incarnation seq chain" of each, one a line; an empty
-- one where there is none. One text, as whoever reads many small ones takes longer than Redis does.

local told = {}
for number, key in ipairs(KEYS) do
  local head = redis.call('HMGET', key, 'incarnation', 'seq', 'chain')
  told[number] = head[1] and head[2] and head[3] and table.concat(head, ' ') or ''
end
return table.concat(told, '\n')
