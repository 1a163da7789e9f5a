// Reads /metrics, the Prometheus text of the server, and differences between two scrapes.

import { Problem, request } from "./api.js";

// Families that the dashboard shows.
const SHOWN = new Set(
  ("samples_total last_record_timestamp_seconds model_paused quarantined_records rolling_error_ratio rolling_absolute_error " +
    "rolling_baseline_error_ratio rolling_baseline_absolute_error rolling_auc column_drift gap_ratio decision_cost " +
    "interval_recent_coverage refused_rows_total refused_column_rows_total forks_total lost_records_total history_lost_labels_total remembered_expired_total replica_lag_seconds " +
    "models models_bytes models_budget_bytes store_available request_duration_seconds_bucket group_rows_sum").split(" "),
);
// Families with one number of a model, by the name that status.js gives it.
const NUMBERS = {
  lastAt: "last_record_timestamp_seconds", quarantined: "quarantined_records", auc: "rolling_auc", gapRatio: "gap_ratio",
  forks: "forks_total", lost: "lost_records_total", lagS: "replica_lag_seconds", expired: "remembered_expired_total",
};
const RATE_S = 10;
const ANSWERS_S = 60;
const ANSWERED = ["learn", "predict"];

export async function scrape(signal) {
  const answer = await request("metrics", { signal });
  if (!answer.ok) throw new Problem(answer.status, { detail: "the server refused /metrics" });
  return { at: performance.now() / 1000, families: parsed(await answer.text()) };
}

// Family -> list of {labels, value}, whose field `of` has those of each model.
function parsed(text) {
  const families = {};
  for (const line of text.split("\n")) {
    const [, name, labels, value] = /^dualstream_(\w+)(?:\{(.*)\})? (\S+)$/.exec(line) ?? [];
    if (!SHOWN.has(name)) continue;
    const pairs = (labels ?? "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g);
    const read = (one) => one.replace(/\\(.)/g, (_, sign) => (sign === "n" ? "\n" : sign));
    const list = (families[name] ??= Object.assign([], { of: new Map() }));
    const one = {
      labels: Object.fromEntries([...pairs].map(([, key, text]) => [key, read(text)])),
      value: value === "+Inf" ? Infinity : Number(value),
    };
    list.push(one);
    const id = one.labels.model;
    if (id !== undefined) list.of.set(id, [...(list.of.get(id) ?? []), one]);
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
      .filter((one, k) => last.at - one.at <= RATE_S || k >= this.kept.length - 2) // a slow server is scraped less often
      .map((one) => ({ at: one.at, value: sum(one.families, name, labels) }))
      .filter((one) => one.value !== null);
    if (seen.length < 2) return null;
    const grown = seen.at(-1).value - seen[0].value;
    return grown < 0 ? null : grown / (last.at - seen[0].at); // a rollback, or a restart
  }

  // Growth of a counter within the last minute.
  grown(name, labels) {
    const [before, now] = [this.kept[0], this.kept.at(-1)].map((one) => sum(one?.families, name, labels) ?? 0);
    return Math.max(0, now - before);
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
    const of = (id) => found.get(id) ?? found.set(id, { moved: [], coverage: [], isPaused: false, baseline: Infinity }).get(id);
    const each = (name, set) => (this.last?.[name] ?? []).forEach((one) => one.labels.model !== "_other" && set(of(one.labels.model), one));
    for (const [field, name] of Object.entries(NUMBERS)) each(name, (model, { value }) => (model[field] = value));
    each("samples_total", (model, { labels, value }) => {
      if (labels.outcome === "learned") model.rows = value;
    });
    each("model_paused", (model, { value }) => (model.isPaused = value === 1));
    each("column_drift", (model, { labels, value }) => model.moved.push({ name: labels.column, psi: value }));
    each("interval_recent_coverage", (model, { labels, value }) => model.coverage.push({ level: Number(labels.level), recent: value }));
    each("decision_cost", (model, { labels, value }) => (model[{ least_cost: "cost", best_constant: "constantCost" }[labels.decision]] = value));
    // Of the group that has lost the most: a label is that of each group.
    each("history_lost_labels_total", (model, { value }) => (model.lostLabels = Math.max(model.lostLabels ?? 0, value)));
    for (const [error, isRegression] of [["error_ratio", false], ["absolute_error", true]]) {
      each(`rolling_${error}`, (model, { value }) => Object.assign(model, { error: value, isRegression }));
      each(`rolling_baseline_${error}`, (model, { labels, value }) => {
        if (value < model.baseline) Object.assign(model, { baseline: value, baselineName: labels.baseline });
      });
    }
    for (const [id, model] of found) {
      model.perSecond = this.perSecond("samples_total", { model: id, outcome: "learned" });
      const [learned, refused] = [this.grown("samples_total", { model: id }), this.grown("refused_rows_total", { model: id })];
      model.refusedRatio = refused > 0 ? refused / (learned + refused) : 0;
      const columns = (this.last.refused_column_rows_total?.of.get(id) ?? []).map(({ labels }) =>
        [labels.column, this.grown("refused_column_rows_total", { model: id, column: labels.column })]);
      model.refusedColumn = columns.toSorted((a, b) => b[1] - a[1]).find(([, rows]) => rows > refused / 2)?.[0];
    }
    return found;
  }
}

function sum(families, name, labels) {
  const list = families?.[name] ?? [];
  const matching = ("model" in labels ? list.of?.get(labels.model) ?? [] : list).filter((one) => Object.entries(labels).every(([key, value]) => one.labels[key] === value));
  return matching.length ? matching.reduce((total, one) => total + one.value, 0) : null;
}
