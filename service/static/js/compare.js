// Page that compares two models, or two versions: figures, curves and specifications side by side.

import { call, modelPath } from "./api.js";
import { Plot } from "./charts.js";
import { breakable, card, h, right, table } from "./dom.js";
import { errorOf, nameOf, recent, windowOf } from "./errors.js";
import { count, number, percent, plural, share } from "./format.js";
import { hrefOf } from "./names.js";

const NOW = "now";
const PAGE = 500;
const MEASURED = "rows measured";

// A side is a model, or one of its versions: NAME or NAME@VERSION. No name of a model has an @.
export const compareHref = (a, b = "") => `#/compare/${encodeURIComponent(a)}${b && `/${encodeURIComponent(b)}`}`;

export async function showCompare(root, a, b, signal) {
  const { models } = await call(`models?limit=${PAGE}`, { signal });
  const known = h("datalist", { id: "known-models" }, models.map((one) => h("option", { value: one.id })));
  const places = [a, b].map((text, k) => chooser(text ?? "", `Side ${"AB"[k]}`, `side-${k}`, open, signal));
  const place = h("div");
  root.append(h("h1", {}, "Compare"), known, h("div", { class: "grid compare-sides" }, places.map((one) => one.element)), place);

  function open() {
    const [first, second] = places.map((one) => one.value());
    if (first && second) location.hash = compareHref(first, second);
  }

  await Promise.all(places.map((one) => one.load()));
  if (!a || !b) {
    place.append(h("p", { class: "quiet" }, "Choose two models, or two versions of a model."));
    return;
  }
  const sides = await Promise.all([a, b].map((text) => read(text, signal)));
  // The last rows of a version are earlier ones than those of another state of the model.
  const isSameModel = sides[0].id === sides[1].id;
  place.append(
    h("p", { class: "small quiet" }, isSameModel
      ? "Both are states of one model, each measured on the rows up to it, before they were learned. A difference can be one of the rows, so neither is called better."
      : "Each is measured on the rows that it has learned, before it learned them. So the figures compare only if both got the same rows."),
    h("div", { class: "grid" }, figures(sides, isSameModel), curves(sides, signal), specifications(sides)));
}

function chooser(text, label, key, changed, signal) {
  const [id, version] = text.split("@");
  const name = h("input", { id: key, value: id, list: "known-models", autocomplete: "off", placeholder: "Name of a model", onchange: async () => {
    await load();
    changed();
  } });
  const versions = h("select", { id: `${key}-version`, onchange: changed });
  const element = h("div", { class: "row" },
    h("div", {}, h("label", { for: key }, label), name),
    h("div", {}, h("label", { for: `${key}-version` }, "State"), versions));

  async function load() {
    const found = name.value ? await call(modelPath(name.value, "/versions"), { signal }).catch(() => ({ versions: [] })) : { versions: [] };
    versions.replaceChildren(h("option", { value: "" }, NOW),
      ...found.versions.toReversed().map((one) => h("option", { value: one.name, selected: name.value === id && one.name === version }, `version ${one.name}`)));
  }

  return { element, load, value: () => name.value && name.value + (versions.value && `@${versions.value}`) };
}

async function read(text, signal) {
  const [id, version] = text.split("@");
  const of = (path) => call(modelPath(id, path), { signal });
  const { spec } = await of("");
  if (version) {
    const metrics = await of(`/versions/${encodeURIComponent(version)}/metrics`);
    return { text, id, spec, metrics, points: metrics.points, calibration: null };
  }
  const [metrics, { points }, found] = await Promise.all([of("/metrics"), of("/timeline"), spec.task === "binary" ? of("/confusion") : null]);
  return { text, id, spec, metrics, points, calibration: found?.calibration ?? null };
}

// Title, format and value of each figure; of two, the smaller one is better, or the larger one with `isMore`.
function figuresOf({ spec, metrics, calibration }) {
  const isRegression = spec.task === "regression";
  const [format, what] = [isRegression ? number : percent, nameOf(isRegression)];
  const { rolling, since_start: all } = metrics;
  const best = errorOf(rolling).baselines[0];
  return [
    // Fewer than the rows learned if labels were revised, or if the learner has started again.
    [MEASURED, count, metrics.rows, null],
    [`${what}, last 1,000 rows`, format, errorOf(rolling).value],
    [`${what}, since start`, format, errorOf(all).value],
    ["best baseline, last 1,000 rows", format, best?.value, null],
    ["log-loss, last 1,000 rows", number, rolling.log_loss],
    ["log-loss, since start", number, all.log_loss],
    ["root mean squared error, last 1,000 rows", number, rolling.rmse],
    ["AUC, last 1,000 rows", number, rolling.auc, true],
    ["average precision, last 1,000 rows", number, rolling.average_precision, true],
    ["calibration error, last 1,000 rows", percent, calibration?.error],
    ["cost a row, last 1,000 rows", number, metrics.costs?.rolling.cost],
    ["precision of alerts, last 1,000 rows", percent, metrics.alerts?.rolling.precision, true],
    ["recall of alerts, last 1,000 rows", percent, metrics.alerts?.rolling.recall, true],
    ...(metrics.intervals ?? []).flatMap((one) => [
      [`coverage of ${share(one.level)}, last 1,000 rows`, percent, one.recent_coverage, null],
      [`mean ${isRegression ? "width" : "set size"} at ${share(one.level)}`, number, one.mean_width ?? one.mean_set_size],
    ]),
  ].filter(([, , value]) => value != null);
}

function figures(sides, isSameModel) {
  const [first, second] = sides.map((one) => new Map(figuresOf(one).map((row) => [row[0], row])));
  const titles = [...new Set([...first.keys(), ...second.keys()])];
  const isSameTask = sides[0].spec.task === sides[1].spec.task;
  const about = isSameModel ? "" : isSameTask ? "The better one of two is green." : "They predict different things, so neither is called better.";
  const shown = (row, other) => {
    if (!row) return right("–");
    const [, format, value, isMore = false] = row;
    const isBetter = isSameTask && !isSameModel && isMore !== null && other && (isMore ? value > other[2] : value < other[2]);
    return right(h("span", { class: isBetter ? "good" : null }, format(value), isBetter ? h("span", { class: "offscreen" }, " (better)") : ""));
  };
  const element = card("Figures", about && h("p", { class: "small quiet" }, about), table(
    ["", ...sides.map((one) => right(h("a", { href: hrefOf(one.id) }, one.text)))],
    titles.map((title) => [title, shown(first.get(title), second.get(title)), shown(second.get(title), first.get(title))]),
    "Figures of both"));
  element.classList.add("whole-table");
  return element;
}

function curves(sides, signal) {
  const isRegression = sides[0].spec.task === "regression";
  const what = nameOf(isRegression);
  if (isRegression !== (sides[1].spec.task === "regression")) {
    return card("Errors over the rows", h("p", { class: "quiet" }, "One predicts numbers and the other classes: their errors have no common scale."));
  }
  const element = card(`${what[0].toUpperCase()}${what.slice(1)} over the rows`);
  const plot = new Plot({
    title: `${what} of ${sides[0].text} and ${sides[1].text}`,
    xLabel: MEASURED,
    series: sides.map((one, k) => ({ label: one.text, colour: ["--c1", "--c2"][k], dash: k ? [4, 4] : undefined, format: isRegression ? undefined : percent })),
  }, signal);
  // One window, so that the same rows have the same curve.
  const length = Math.max(...sides.map(({ points }) => windowOf(points)));
  const values = sides.map(({ points }) => {
    const own = recent(points, (view) => errorOf(view).value, length);
    return new Map(points.map((point, k) => [point.rows, own[k]]));
  });
  const rows = [...new Set(values.flatMap((one) => [...one.keys()]))].toSorted((x, y) => x - y);
  element.append(h("p", { class: "small quiet" }, `Mean of the last ${plural(length, "row")}.`), plot.element);
  plot.set([rows, ...values.map((one) => rows.map((row) => one.get(row) ?? null))]);
  return element;
}

function specifications(sides) {
  const [first, second] = sides.map((one) => new Map(leaves("", one.spec)));
  const paths = [...new Set([...first.keys(), ...second.keys()])].filter((path) => first.get(path) !== second.get(path));
  const element = card("Differences of the specifications", paths.length
    ? table(["field", ...sides.map((one) => one.text)], paths.map((path) => [h("span", {}, breakable(path)), first.get(path) ?? "–", second.get(path) ?? "–"]), "Fields that differ")
    : h("p", {}, "Both have the same specification."));
  element.classList.add("wide", "whole-table");
  return element;
}

// [path, text] of each value in a specification.
function leaves(path, value) {
  if (value === null || typeof value !== "object" || !Object.keys(value).length) return [[path, JSON.stringify(value)]];
  return Object.entries(value).flatMap(([name, one]) => leaves(path ? `${path}.${name}` : name, one));
}
