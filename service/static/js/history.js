// What happened to a model: drift and guard trips of its timeline, and changes of the audit log.

import { Problem, call } from "./api.js";
import { count, number, plural, seconds } from "./format.js";

const PAGE = 1000;
const KINDS = {
  rollback: "rollback", pause: "rollback", resume: "other", version: "version", promote: "promotion", demote: "promotion",
  member_add: "other", member_remove: "other", refit: "other", unlearn: "other",
};
// Changes that take no seq of their own.
const NO_RECORD = ["create", "replace", "delete", "version", "version_delete", "refit_begin", "refit_cancel", "source_set", "source_forget"];

// Returns a function from a timeline to the events up to it, oldest first:
// {kind, isBad, rows, seq, time, text, version}.
export function historyOf(id, signal) {
  let [changes, after, reading] = [[], "", Promise.resolve()];

  // Adds the changes since the last call. A key without the scope `admin` sees none.
  async function readOn() {
    try {
      for (let next = after; next !== null; ) {
        const page = await call(`audit?model=${encodeURIComponent(id)}&limit=${PAGE}&after=${encodeURIComponent(next)}`, { signal });
        changes = changes.concat(page.changes);
        after = changes.at(-1)?.place ?? "";
        next = page.next;
      }
    } catch (error) {
      if (!(error instanceof Problem && error.status === 403)) throw error;
    }
  }

  return async (timeline) => {
    reading = reading.catch(() => {}).then(readOn); // one after the other
    await reading;
    // An id may have named other models before.
    const own = changes.filter((one) => one.incarnation === changes.at(-1).incarnation && one.outcome !== "refused");
    const events = timeline.events.map((event) => ({
      kind: event.kind,
      isBad: event.kind === "guard" || event.rising,
      rows: event.rows,
      seq: event.seq,
      time: timeOf(event.rows, timeline.times),
      text: textOf(event),
    }));
    return [...events, ...placed(own, timeline.samples)].toSorted((a, b) => a.seq - b.seq);
  };
}

// Adds the number of learned rows at each change. A row takes one seq, and so does a control record;
// after a rollback the rows are those of the restored seq. Rejected rows are not known here.
function placed(changes, samples) {
  const starts = [{ seq: 0, offset: 0 }];
  const rowsAt = (seq) => Math.max(0, seq - starts.findLast((one) => one.seq <= seq).offset);
  const events = [];
  let paused = null;
  for (const { action, seq, time, detail } of changes) {
    const isRecord = !NO_RECORD.includes(action);
    let before = rowsAt(isRecord ? seq - 1 : seq);
    let rows = before;
    if (action === "pause") before = paused = rowsAt(detail.since);
    if ((action === "rollback" || action === "pause") && detail.seq != null) rows = rowsAt(detail.seq);
    if (action === "resume" && detail.rows === "drop") rows = paused ?? before;
    if (isRecord) starts.push({ seq, offset: seq - rows });
    if (!(action in KINDS)) continue;
    events.push({
      kind: KINDS[action],
      isBad: action === "pause",
      rows: Math.min(rows, samples),
      seq,
      time: seconds(time),
      text: changeText(action, detail, before, rows),
      version: action === "version" ? detail.name : null,
    });
  }
  return events;
}

function changeText(action, detail, before, rows) {
  const from = `from ${count(before)} to ${plural(rows, "row")}`;
  switch (action) {
    case "rollback": return `Rolled back ${from}${detail.version ? `, version ${detail.version}` : `, seq ${count(detail.seq)}`}`;
    case "pause": return `Learning paused by the guard, and taken back ${from}`;
    case "resume": return `Learning resumed; rows in quarantine were ${detail.rows === "learn" ? "learned" : "dropped"}`;
    case "version": return `Version ${detail.name} saved`;
    case "promote": return `Member ${detail.name} promoted: it alone predicts`;
    case "demote": return `Promotion of ${detail.name ?? "a member"} ended`;
    case "member_add": return `Member ${detail.name} added`;
    case "member_remove": return `Member ${detail.name} removed`;
    case "refit": return "Refit: the weights are those of a new solution on the window";
    default: return "A sample was unlearned";
  }
}

function textOf(event) {
  if (event.kind === "guard") {
    const what = event.quantity === "loss" ? "the loss" : "the norm of the weights";
    return `Guard: ${what} was ${number(event.value)}, above its limit ${number(event.limit)}${event.paused ? "; learning paused" : ""}`;
  }
  const detector = event.detector === "adwin" ? "ADWIN" : "Page-Hinkley";
  return `Drift: the loss ${event.rising ? "rose" : "fell"} (${detector})`;
}

// The time at which the model had learned `rows`, in seconds since 1970; interpolated between the
// moments that the server knows, null before them.
export function timeOf(rows, times) {
  const k = times.findIndex((one) => one.rows >= rows);
  if (k < 0 || (k === 0 && times[0].rows > rows)) return null;
  if (times[k].rows === rows) return seconds(times[k].time);
  const [low, high] = [times[k - 1], times[k]];
  const part = (rows - low.rows) / (high.rows - low.rows);
  return seconds(low.time) + part * (seconds(high.time) - seconds(low.time));
}
