// Intervals and sets: the card of their coverage, and those of one prediction in words.

import { card, h, right, table } from "./dom.js";
import { count, number, percent, share } from "./format.js";
import { Plot } from "./charts.js";

const MAX_POINTS = 3000;
const COLOURS = ["--c1", "--c3", "--c4", "--c2", "--c6"];

export const hasIntervals = (spec) => Boolean(spec.intervals);

const levelsOf = (spec) => [spec.intervals?.coverage ?? []].flat();
const unitOf = (spec) => (spec.task === "regression" ? "interval" : "set");

export function intervalsPart(spec, signal) {
  const levels = levelsOf(spec);
  const isNumber = spec.task === "regression";
  const plot = new Plot({
    title: "Share of the last 1,000 rows within",
    series: levels.flatMap((level, k) => [
      { label: `within ${share(level)}`, colour: COLOURS[k], format: percent },
      { label: `${share(level)} wanted`, colour: COLOURS[k], dash: [4, 4], format: percent },
    ]),
  }, signal);
  const list = h("div");
  const title = isNumber ? "Intervals" : "Sets of labels";
  const element = card(title,
    h("p", { class: "small quiet" }, isNumber
      ? "The share of labels within their intervals, which were computed before the labels were known."
      : "The share of labels within their sets, which were computed before the labels were known. A set always has the predicted label."),
    list, plot.element);
  element.hidden = true;
  const columns = [[], ...levels.flatMap(() => [[], []])];

  function add({ intervals, samples }) {
    if (!intervals) return;
    element.hidden = !intervals[0].rows;
    list.replaceChildren(table(
      ["wanted", right("all rows"), right("last 1,000"), right(isNumber ? "mean width" : "mean size"), right(isNumber ? "open" : "all labels")],
      intervals.map((one) => [share(one.level), right(percent(one.coverage)), right(percent(one.recent_coverage)),
        right(number(one.mean_width ?? one.mean_set_size)), right(count(one.unbounded))]),
      `${title} by level`,
    ));
    if (!intervals[0].rows) return;
    const last = columns[0].at(-1);
    if (samples === last) columns.forEach((column) => column.pop());
    else if (samples < last) columns.forEach((column) => column.splice(0)); // a rollback
    columns[0].push(samples);
    intervals.forEach((one, k) => {
      columns[1 + 2 * k].push(one.recent_coverage);
      columns[2 + 2 * k].push(one.level);
    });
    if (columns[0].length > MAX_POINTS) columns.forEach((column) => column.shift());
    plot.set(columns);
  }

  return { element, add };
}

// One text for each level, of the answer to a prediction of one row.
export function intervalTexts(spec, predicted) {
  const levels = levelsOf(spec);
  const single = spec.task === "regression" ? predicted.interval : predicted.set;
  const all = predicted.intervals ?? predicted.sets;
  return levels.map((level) => `${share(level)} ${unitOf(spec)}: ${textOf(spec, all ? all[level] : single)}`);
}

function textOf(spec, one) {
  if (one == null) return "none before 20 labelled rows";
  if (spec.task !== "regression") return one.map(String).join(", ");
  return one[0] === null ? "all numbers" : `${number(one[0])} to ${number(one[1])}`;
}
