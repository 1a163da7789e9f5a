-- Sends recorded bodies, one line each, to models chosen by a Zipf law, checks each status, and
-- writes down the model and the seq of each answer.
-- Environment: BODIES; MODELS how many there are, named MODEL .. a number of five digits; EXPONENT;
-- SEED; ACKS where the answers go.

local bodies = {}
for line in io.lines(os.getenv("BODIES")) do bodies[#bodies + 1] = line end
local acks = io.open(os.getenv("ACKS"), "w")
local models, exponent = tonumber(os.getenv("MODELS")), tonumber(os.getenv("EXPONENT"))
local at, total, up_to = 0, 0, {}
math.randomseed(tonumber(os.getenv("SEED")))
for rank = 1, models do
  total = total + rank ^ -exponent
  up_to[rank] = total
end

wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"

bad = 0

local function chosen()
  local luck, low, high = math.random() * total, 1, models
  while low < high do
    local middle = math.floor((low + high) / 2)
    if up_to[middle] < luck then low = middle + 1 else high = middle end
  end
  -- Those asked for often stand anywhere among the ids.
  return (low - 1) * 7919 % models
end

function request()
  at = at % #bodies + 1
  local path = string.format("/models/%s%05d/learn", os.getenv("MODEL"), chosen())
  return wrk.format(nil, path, nil, bodies[at])
end

function response(status, headers, body)
  if status ~= 200 then
    bad = bad + 1
  else
    local model, seq = string.match(body, '"model":"(.-)".-"seq":(%d+)')
    if seq then acks:write(model, " ", seq, "\n") end
  end
end

local threads = {}
function setup(thread) threads[#threads + 1] = thread end

function done(summary, latency, requests)
  local refused = 0
  for _, thread in ipairs(threads) do refused = refused + thread:get("bad") end
  local errors = summary.errors
  io.write(string.format(
    "RESULT %d %d %d %f %f\n", summary.requests, summary.duration, refused
      + errors.connect + errors.read + errors.write + errors.timeout,
    latency:percentile(50), latency:percentile(99)))
end
