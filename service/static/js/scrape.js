// Reads /metrics, the Prometheus text of the server, and differences between two scrapes.

import { Problem, request } from "./api.js";

// Families that the dashboard shows.
const SHOWN = new Set(
  ("samples_total last_record_timestamp_seconds model_paused rolling_error_ratio rolling_absolute_error " +
    "rolling_baseline_error_ratio rolling_baseline_absolute_error column_drift models models_bytes " +
    "models_budget_bytes store_available request_duration_seconds_bucket group_rows_sum").split(" "),
);
const LARGE_DRIFT = 0.25;
const RATE_S = 10;
const ANSWERS_S = 60;
const ANSWERED = ["learn", "predict"];

export async function scrape(signal) {
  const answer = await request("metrics", { signal });
  if (!answer.ok) throw new Problem(answer.status, { detail: "the server refused /metrics" });
  return { at: performance.now() / 1000, families: parsed(await answer.text()) };
}

// Family -> list of {labels, value}.
function parsed(text) {
  const families = {};
  for (const line of text.split("\n")) {
    const [, name, labels, value] = /^dualstream_(\w+)(?:\{(.*)\})? (\S+)$/.exec(line) ?? [];
    if (!SHOWN.has(name)) continue;
    const pairs = (labels ?? "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g);
    const read = (one) => one.replace(/\\(.)/g, (_, sign) => (sign === "n" ? "\n" : sign));
    (families[name] ??= []).push({
      labels: Object.fromEntries([...pairs].map(([, key, one]) => [key, read(one)])),
      value: value === "+Inf" ? Infinity : Number(value),
    });
  }
  return families;
}

// Scrapes of the last minute.
export class Scrapes {
  constructor() {
    this.kept = [];
  }

  add(found) {
    this.kept.push(found);
    while (this.kept.length > 2 && found.at - this.kept[1].at >= ANSWERS_S) this.kept.shift();
  }

  get last() {
    return this.kept.at(-1)?.families;
  }

  value(name, labels = {}) {
    return sum(this.last, name, labels);
  }

  // Growth per second of a counter over about 10 seconds; null before the second scrape that has it.
  perSecond(name, labels = {}) {
    const last = this.kept.at(-1);
    const seen = this.kept
      .filter((one) => last.at - one.at <= RATE_S)
      .map((one) => ({ at: one.at, value: sum(one.families, name, labels) }))
      .filter((one) => one.value !== null);
    if (seen.length < 2) return null;
    const grown = seen.at(-1).value - seen[0].value;
    return grown < 0 ? null : grown / (last.at - seen[0].at); // a rollback, or a restart
  }

  // Quantile of the time to answer learn and predict within the last minute; null without requests.
  // As in Prometheus, interpolated within a bucket.
  answerSeconds(quantile) {
    const [first, last] = [this.kept[0], this.kept.at(-1)];
    if (!last) return null;
    const buckets = (found) => {
      const total = new Map();
      for (const { labels, value } of found?.families.request_duration_seconds_bucket ?? []) {
        if (!ANSWERED.includes(labels.route)) continue;
        const bound = labels.le === "+Inf" ? Infinity : Number(labels.le);
        total.set(bound, (total.get(bound) ?? 0) + value);
      }
      return total;
    };
    const before = first === last ? new Map() : buckets(first);
    const grown = [...buckets(last)].toSorted(([a], [b]) => a - b).map(([bound, n]) => [bound, n - (before.get(bound) ?? 0)]);
    const wanted = quantile * (grown.at(-1)?.[1] ?? 0);
    if (!(wanted > 0)) return null;
    let [low, below] = [0, 0];
    for (const [bound, n] of grown) {
      if (n >= wanted) return bound === Infinity ? low : low + ((bound - low) * (wanted - below)) / (n - below);
      [low, below] = [bound, n];
    }
    return low;
  }

  // What the overview shows of each model, by id.
  models() {
    const found = new Map();
    const of = (id) => found.get(id) ?? found.set(id, { drifting: false, isPaused: false, baseline: Infinity }).get(id);
    const each = (name, set) => (this.last?.[name] ?? []).forEach((one) => one.labels.model !== "_other" && set(of(one.labels.model), one));
    each("samples_total", (model, { labels, value }) => {
      if (labels.outcome === "learned") model.rows = value;
    });
    each("last_record_timestamp_seconds", (model, { value }) => (model.lastAt = value));
    each("model_paused", (model, { value }) => (model.isPaused = value === 1));
    each("column_drift", (model, { value }) => (model.drifting ||= value >= LARGE_DRIFT));
    for (const [error, isRegression] of [["error_ratio", false], ["absolute_error", true]]) {
      each(`rolling_${error}`, (model, { value }) => Object.assign(model, { error: value, isRegression }));
      each(`rolling_baseline_${error}`, (model, { value }) => (model.baseline = Math.min(model.baseline, value)));
    }
    for (const [id, model] of found) model.perSecond = this.perSecond("samples_total", { model: id, outcome: "learned" });
    return found;
  }
}

function sum(families, name, labels) {
  const matching = (families?.[name] ?? []).filter((one) => Object.entries(labels).every(([key, value]) => one.labels[key] === value));
  return matching.length ? matching.reduce((total, one) => total + one.value, 0) : null;
}
