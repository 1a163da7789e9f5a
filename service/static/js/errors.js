// The error measure of a model: error rate, or mean absolute error for regression.

import { number, percent } from "./format.js";

const BASELINES = {
  most_frequent: "always the most frequent label",
  last_label: "always the previous label",
  running_mean: "always the mean so far",
};

export const nameOf = (isRegression) => (isRegression ? "mean absolute error" : "error rate");

// The loss of a specification in words, with its unit if it has one.
export const lossOf = ({ loss, task }) =>
  loss ? String(loss.kind ?? loss).replaceAll("_", " ") : task === "regression" ? "scaled squared error" : "log-loss in nats";

// The error of a view (since_start or rolling), and those of its baselines, the best one first.
export function errorOf(view) {
  const isRegression = "mae" in view;
  const name = isRegression ? "mae" : "error_rate";
  const baselines = Object.entries(view.baselines ?? {})
    .map(([id, metrics]) => ({ id, label: BASELINES[id] ?? id, value: metrics[name] }))
    .filter((one) => one.value != null)
    .toSorted((a, b) => a.value - b.value);
  return { isRegression, value: view[name], baselines, show: isRegression ? number : percent };
}

// An error below its baseline by less than this part of it is hardly better.
const HARDLY = 0.05;
// Of a rare label, the error can hardly be below that of the baseline. A model that ranks this well is useful.
const GOOD_AUC = 0.7;

export const labelOf = (baseline) => BASELINES[baseline] ?? baseline;

// Of an error and that of its best baseline: good, warn (hardly better) or bad (worse); "" if one is not known.
export function ratingOf(value, baseline, auc) {
  if (!Number.isFinite(value) || !Number.isFinite(baseline)) return "";
  if (value > baseline) return "bad";
  return value <= (1 - HARDLY) * baseline || auc >= GOOD_AUC ? "good" : "warn";
}

// "12.3 points better than X (20.1 %)".
export function compared({ isRegression, value, baselines: [best], show }) {
  if (value == null || !best) return "no rows yet";
  const difference = best.value - value;
  const by = isRegression ? `${number(Math.abs(difference))} label units` : `${(100 * Math.abs(difference)).toFixed(1)} points`;
  const how = difference === 0 ? "the same as" : `${by} ${difference < 0 ? "worse" : "better"} than`;
  return `${how} the best baseline, ${best.label} (${show(best.value)})`;
}

// Rows of the moving average of a curve: 25, or a fortieth of the stream.
export const windowOf = (points) => Math.round(Math.max(25, (points.at(-1)?.rows ?? 0) / 40));

// Moving average of `read(view)` at each point, over the last `least` rows. Computed from the means since the
// start, which every point has.
export function recent(points, read, least = windowOf(points)) {
  const sums = points.map((point) => (read(point.since_start) ?? 0) * point.rows);
  let from = -1;
  return points.map((point, k) => {
    while (from + 1 < k && points[from + 1].rows <= point.rows - least) from += 1;
    const [rows, sum] = from < 0 ? [0, 0] : [points[from].rows, sums[from]];
    return point.rows > rows ? Math.max(0, (sums[k] - sum) / (point.rows - rows)) : null;
  });
}
