-- Walks through recorded bodies, checks each status, and writes down the seq of each answer.
-- Environment: BODIES a file, of which LINES lines are a body (what is left over is not sent), of
-- the type CONTENT_TYPE; ACKS where the seqs go; API_KEY may be empty.

local bodies, held, lines = {}, {}, tonumber(os.getenv("LINES"))
for line in io.lines(os.getenv("BODIES")) do
  held[#held + 1] = line
  if #held == lines then
    bodies[#bodies + 1] = table.concat(held, "\n")
    held = {}
  end
end
local acks = io.open(os.getenv("ACKS"), "w")
local at = 0

wrk.method = "POST"
wrk.path = os.getenv("TARGET")
wrk.headers["Content-Type"] = os.getenv("CONTENT_TYPE")

local key = os.getenv("API_KEY")
if key and key ~= "" then wrk.headers["Authorization"] = "Bearer " .. key end

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
