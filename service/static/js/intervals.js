// Intervals and sets: the card of their coverage, and those of one prediction in words.

import { call, modelPath } from "./api.js";
import { card, choice, h, right, table } from "./dom.js";
import { count, number, percent, share } from "./format.js";
import { Course, Plot } from "./charts.js";

const COLOURS = ["--c1", "--c3", "--c4", "--c2", "--c6"];

export const hasIntervals = (spec) => Boolean(spec.intervals);

const levelsOf = (spec) => [spec.intervals?.coverage ?? []].flat();
export const unitOf = (spec) => (spec.task === "regression" ? "interval" : "set");

// The title of the card.
export const titleOf = (spec) => (spec.task === "regression" ? "Intervals" : "Sets of labels");

// `begin`: see Plot.
export function intervalsPart(id, spec, begin, signal) {
  const levels = levelsOf(spec);
  const isNumber = spec.task === "regression";
  const plot = new Course({
    title: "Share of the last 1,000 rows within",
    begin,
    isLoose: true,
    series: levels.flatMap((level, k) => [
      { label: `within ${share(level)}`, colour: COLOURS[k], format: percent },
      { label: `${share(level)} wanted`, colour: COLOURS[k], dash: [4, 4], format: percent },
    ]),
  }, signal);
  const list = h("div");
  const title = titleOf(spec);
  const element = card(title,
    h("p", { class: "small quiet" }, isNumber
      ? "The share of labels within their intervals, which were computed before the labels were known."
      : "The share of labels within their sets, which were computed before the labels were known. A set always has the predicted label."),
    list, plot.element);
  element.hidden = true;
  const last = isNumber ? lastRows(id, levels, signal) : null;

  function add({ intervals, samples }) {
    if (!intervals) return;
    element.hidden = !intervals[0].rows;
    list.replaceChildren(table(
      ["wanted", right("all rows"), right("last 1,000"), right(isNumber ? "mean width" : "mean size"), right(isNumber ? "open" : "all labels")],
      intervals.map((one) => [share(one.level), right(percent(one.coverage)), right(percent(one.recent_coverage)),
        right(number(one.mean_width ?? one.mean_set_size)), right(count(one.unbounded))]),
      `${title} by level`,
    ));
    if (intervals[0].rows) plot.add(samples, intervals.flatMap((one) => [one.recent_coverage, one.level]));
  }

  // `found`: the answer of GET trends.
  function showTrends({ rows, series }) {
    const of = series.filter((one) => one.name === "coverage");
    const columns = levels.flatMap((level) => [of.find((one) => Number(one.of) === level)?.values, rows.map(() => level)]);
    if (!columns.includes(undefined)) plot.putBefore([rows, ...columns]);
  }

  return { elements: [element, last?.element ?? ""], plots: [plot], add, showTrends, refresh: async () => last?.refresh() };
}

// Card of the last rows of a regression: labels, predictions, and the bands of the narrowest and the widest level.
function lastRows(id, levels, signal) {
  const shown = [...new Set([Math.max(...levels), Math.min(...levels)])];
  let rows = "60";
  let seqs = [];
  const plot = new Plot({
    title: "Labels of the last rows, predictions and their intervals",
    xLabel: "seq",
    isLoose: true,
    height: 300,
    begin: () => seqs.at(-rows) ?? seqs[0],
    series: [
      { label: "label", colour: "--c2", isDots: true },
      { label: "prediction", colour: "--c1" },
      ...shown.flatMap((level) => [
        { label: `${share(level)} from`, colour: "--c8", isEdge: true },
        { label: "to", colour: "--c8", isEdge: true },
      ]),
    ],
    bands: shown.map((_, k) => ({ series: [4 + 2 * k, 3 + 2 * k], fill: "--c1" })),
  }, signal);
  const element = card("Last predictions",
    h("p", { class: "small quiet" }, `Rows before each was learned: the label, the prediction, and its interval${shown.length > 1 ? "s" : ""}.`),
    h("div", { class: "switches" }, choice("Rows", { 60: "60 rows", 200: "200 rows" }, rows, (chosen) => {
      rows = chosen;
      plot.unzoom();
    })),
    plot.element);
  element.classList.add("wide", "with-switch");
  element.hidden = true;

  async function refresh() {
    const { labels, scores, intervals, ...found } = await call(modelPath(id, "/intervals"), { signal });
    seqs = found.seqs;
    element.hidden = seqs.length < 2;
    // Levels are named as the server writes them.
    const ends = shown.map((level) => Object.entries(intervals).find(([name]) => Number(name) === level)[1]);
    plot.set([seqs, labels, scores, ...ends.flatMap((of) => [of.map(([low]) => low), of.map(([, high]) => high)])]);
  }

  return { element, refresh };
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
