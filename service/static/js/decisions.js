// Cards of a model's decisions: what they cost, and its alerts. Each has tiles and a curve.

import { Course } from "./charts.js";
import { card, h, tile } from "./dom.js";
import { number, percent, plural, share } from "./format.js";

// `begin`: see Plot.
export function decisionsPart(spec, begin, signal) {
  const curve = (title, series) => new Course({ title, series, begin }, signal);
  const parts = [...(spec.costs ? [costs(curve)] : []), ...(spec.alert_rate ? [alerts(spec.alert_rate, curve)] : [])];
  const courses = parts.flatMap((one) => one.courses);
  return {
    plots: courses.map((one) => one.plot),
    elements: parts.map((one) => one.element),
    add: (event) => parts.forEach((one) => one.add(event)),
    // `found`: the answer of GET trends.
    showTrends({ rows, series }) {
      for (const { plot, names } of courses) {
        const columns = names.map((name) => series.find((one) => one.name === name)?.values);
        if (!columns.includes(undefined)) plot.putBefore([rows, ...columns]);
      }
    },
  };
}

function costs(curve) {
  const [cost, constant] = [tile("Cost a row, last 1,000 labelled rows"), tile("Best constant decision")];
  const plot = curve("Cost a row in the last 1,000 labelled rows", [
    { label: "least expected cost", colour: "--c1", isFilled: true },
    { label: "best constant decision", colour: "--c4", dash: [4, 4] },
    { label: "most probable label", colour: "--c2", dash: [4, 4] },
  ]);
  return {
    courses: [{ plot, names: ["cost", "best_constant", "most_probable"] }],
    element: decisionCard("Costs", [cost, constant], plot),
    add({ samples, costs: { rolling } }) {
      const difference = rolling.cost - rolling.best_constant;
      const [how, kind] = difference > 0 ? ["more than", "bad"] : difference < 0 ? ["less than", "good"] : ["as much as", ""];
      cost.set(number(rolling.cost), rolling.rows ? `${how} the best constant decision` : "no rows yet", { kind: rolling.rows ? kind : "" });
      constant.set(number(rolling.best_constant), `one label for all of these rows; ${number(rolling.most_probable)} by the most probable label`);
      plot.add(samples, [rolling.cost, rolling.best_constant, rolling.most_probable]);
    },
  };
}

function alerts(rate, curve) {
  const [rates, hits] = [tile("Alert rate since start"), tile("Precision of alerts, last 1,000 labelled rows")];
  const plot = curve("Alert rate of the last 1,000 rows, and since start", [
    { label: "last rows", colour: "--c1", format: share, isFilled: true },
    { label: "since start", colour: "--c3", format: share },
  ]);
  const right = curve("Precision and recall of alerts in the last 1,000 labelled rows", [
    { label: "precision", colour: "--c1", format: percent },
    { label: "recall", colour: "--c3", format: percent },
  ]);
  return {
    courses: [{ plot, names: ["alert_rate"] }, { plot: right, names: ["alert_precision", "alert_recall"] }],
    element: decisionCard("Alerts", [rates, hits], plot, right),
    add({ samples, alerts: { since_start: all, rolling, threshold, alerts_a_day: daily } }) {
      const often = daily == null ? "" : `; ${number(daily)} a day`;
      rates.set(share(all.rate), `${share(rate)} wanted; ${plural(all.alerts, "alert")}${often}; above the score ${number(threshold)}`);
      hits.set(percent(rolling.precision), `recall ${percent(rolling.recall)}; since start ${percent(all.precision)} and ${percent(all.recall)}`);
      plot.add(samples, [rolling.rate, all.rate]);
      right.add(samples, [rolling.precision, rolling.recall]);
    },
  };
}

function decisionCard(title, tiles, ...plots) {
  return card(title, h("dl", { class: "tiles two", "aria-label": `Numbers: ${title.toLowerCase()}` }, tiles.map((one) => one.element)), plots.map((one) => one.element));
}
