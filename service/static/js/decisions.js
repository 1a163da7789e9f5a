// Cards of a model's decisions: what they cost, and its alerts. Each has tiles and a curve since the page was opened.

import { Plot } from "./charts.js";
import { card, h, tile } from "./dom.js";
import { count, number, percent, share } from "./format.js";

const MAX_POINTS = 3000;

export function decisionsPart(spec, signal) {
  const parts = [...(spec.costs ? [costs(signal)] : []), ...(spec.alert_rate ? [alerts(spec.alert_rate, signal)] : [])];
  return {
    elements: parts.map((one) => one.element),
    add: (event) => parts.forEach((one) => one.add(event)),
  };
}

function costs(signal) {
  const [cost, constant] = [tile("Cost a row, last 1,000 labelled rows"), tile("Best constant decision")];
  const plot = curve("Cost a row in the last 1,000 labelled rows", [
    { label: "least expected cost", colour: "--c1", isFilled: true },
    { label: "best constant decision", colour: "--c4", dash: [4, 4] },
    { label: "most probable label", colour: "--c2", dash: [4, 4] },
  ], signal);
  return {
    element: decisionCard("Costs", [cost, constant], plot),
    add({ samples, costs: { rolling } }) {
      const isWorse = rolling.cost > rolling.best_constant;
      cost.set(number(rolling.cost), `${number(rolling.most_probable)} by the most probable label`, { kind: isWorse ? "bad" : "good" });
      constant.set(number(rolling.best_constant), "one label for all of these rows");
      plot.add(samples, [rolling.cost, rolling.best_constant, rolling.most_probable]);
    },
  };
}

function alerts(rate, signal) {
  const [rates, hits] = [tile("Alert rate since start"), tile("Precision of alerts")];
  const plot = curve("Alert rate of the last 1,000 rows, and since start", [
    { label: "last rows", colour: "--c1", format: share, isFilled: true },
    { label: "since start", colour: "--c3", format: share },
  ], signal);
  return {
    element: decisionCard("Alerts", [rates, hits], plot),
    add({ samples, alerts: { since_start: all, rolling, threshold, alerts_a_day: daily } }) {
      const often = daily == null ? "" : `; ${number(daily)} a day`;
      rates.set(share(all.rate), `${share(rate)} wanted; ${count(all.alerts)} alerts${often}; above the score ${number(threshold)}`);
      hits.set(percent(all.precision), `of the labelled alerts are positive; they are ${percent(all.recall)} of the positive rows`);
      plot.add(samples, [rolling.rate, all.rate]);
    },
  };
}

function decisionCard(title, tiles, plot) {
  return card(title, h("dl", { class: "tiles two", "aria-label": `Numbers: ${title.toLowerCase()}` }, tiles.map((one) => one.element)), plot.element);
}

function curve(title, series, signal) {
  const plot = new Plot({ title, series }, signal);
  const columns = [[], ...series.map(() => [])];
  return {
    element: plot.element,
    add(x, values) {
      // A repeated row count replaces the last point; a smaller one means a rollback.
      const last = columns[0].at(-1);
      if (x === last) columns.forEach((column) => column.pop());
      else if (x < last) columns.forEach((column) => column.splice(0));
      [x, ...values].forEach((value, k) => columns[k].push(value ?? null));
      if (columns[0].length > MAX_POINTS) columns.forEach((column) => column.shift());
      plot.set(columns);
    },
  };
}
