// What there is to measure: errors of classes, absolute errors of numbers.

// Of one view (since_start or rolling): the name of the error, and the baselines beside it.
export function measure(view) {
  const isRegression = "mae" in view;
  const name = isRegression ? "mae" : "error_rate";
  return {
    name,
    ratio: !isRegression,
    baselines: (of) =>
      Object.entries(of.baselines).map(([label, told]) => ({
        label: label.replace("_", " "),
        value: told[name],
      })),
  };
}

// The mean of `read(view)` over the rows just before each point: of so many that the course can be
// seen, few at the start of a stream and a fortieth of it later. From the means since the start,
// which every point has.
export function recent(points, read) {
  const total = points.at(-1)?.rows ?? 0;
  const least = Math.max(25, total / 40);
  const sums = points.map((point) => (read(point.since_start) ?? 0) * point.rows);
  let from = -1;
  return points.map((point, k) => {
    while (from + 1 < k && points[from + 1].rows <= point.rows - least) from += 1;
    const [rows, sum] = from < 0 ? [0, 0] : [points[from].rows, sums[from]];
    return Math.max(0, (sums[k] - sum) / (point.rows - rows));
  });
}
