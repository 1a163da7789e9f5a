// The error measure of a model: error rate, or mean absolute error for regression.

// Name of the error field in a view (since_start or rolling), and the values of the baselines.
export function measure(view) {
  const isRegression = "mae" in view;
  const name = isRegression ? "mae" : "error_rate";
  return {
    name,
    ratio: !isRegression,
    baselines: (of) =>
      Object.entries(of.baselines).map(([label, metrics]) => ({
        label: label.replace("_", " "),
        value: metrics[name],
      })),
  };
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
