-- Walks through recorded bodies, checks each status, and writes down the seq of each answer.
-- Environment: BODIES a file with one JSON body a line, ACKS where the seqs go.

local bodies = {}
for line in io.lines(os.getenv("BODIES")) do bodies[#bodies + 1] = line end
local acks = io.open(os.getenv("ACKS"), "w")
local at = 0

wrk.method = "POST"
wrk.path = os.getenv("TARGET")
wrk.headers["Content-Type"] = "application/json"

bad = 0

function request()
  at = at % #bodies + 1
  return wrk.format(nil, nil, nil, bodies[at])
end

function response(status, headers, body)
  if status ~= 200 then
    bad = bad + 1
  else
    local seq = string.match(body, '"seq":(%d+)')
    if seq then acks:write(seq, "\n") end
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
