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

// "12.3 points better than X (20.1 %)", and whether the error is worse.
export function compared({ isRegression, value, baselines: [best], show }) {
  if (value == null || !best) return { text: "no rows yet", isWorse: false };
  const difference = best.value - value;
  const isWorse = difference < 0;
  const by = isRegression ? `${number(Math.abs(difference))} label units` : `${(100 * Math.abs(difference)).toFixed(1)} points`;
  const how = difference === 0 ? "the same as" : `${by} ${isWorse ? "worse" : "better"} than`;
  return { text: `${how} the best baseline, ${best.label} (${show(best.value)})`, isWorse };
}

// Moving average of `read(view)` at each point, over the last 25 rows or a fortieth of the stream.
// Computed from the means since the start, which every point has.
export function recent(points, read) {
  const total = points.at(-1)?.rows ?? 0;
  const least = Math.max(25, total / 40);
  const sums = points.map((point) => (read(point.since_start) ?? 0) * point.rows);
  let from = -1;
  return points.map((point, k) => {
    while (from + 1 < k && points[from + 1].rows <= point.rows - least) from += 1;
    const [rows, sum] = from < 0 ? [0, 0] : [points[from].rows, sums[from]];
    return point.rows > rows ? Math.max(0, (sums[k] - sum) / (point.rows - rows)) : null;
  });
}
