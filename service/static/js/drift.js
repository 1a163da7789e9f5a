// Tab of drift: changes of the loss, and columns of the input that moved.

import { card, h, right, since, svg, table } from "./dom.js";
import { count, number, percent } from "./format.js";

const PICTURES = 8;
// A bound of two ranges has a line of its own if it has this share of the rows.
const FREQUENT = 0.01;

export function driftPart() {
  const losses = h("div");
  const input = h("div");
  const list = h("div", { class: "pictures" });
  const pictures = card("Before and after",
    h("p", { class: "small quiet" }, "Shares of the rows by value: ", h("span", { class: "keyed" }, h("span", { class: "swatch s8" }), "about 10,000 rows before"), " ",
      h("span", { class: "keyed" }, h("span", { class: "swatch s1" }), "about the last 1,000"), ". At the right: before → recently."),
    list);
  pictures.classList.add("wide");
  pictures.hidden = true;
  const element = h("div", { class: "grid" },
    card("Drift of the loss",
      h("p", { class: "small quiet" }, "Two detectors watch the loss of each row before it is learned. A loss that rises means that the stream has changed; it falls while a model learns."),
      losses),
    card("Drift of the input",
      h("p", { class: "small quiet" }, "The stability index compares about the last 1,000 rows of a column with the 10,000 before: moderate from 0.1, large from 0.25. The tab Features has all columns."),
      input),
    pictures);

  function showEvents(events) {
    const found = events.filter((one) => one.kind === "drift" || one.kind === "guard");
    losses.replaceChildren(found.length
      ? table(
          ["what happened", right("at rows"), right("seq"), right("when")],
          found.toReversed().map((one) => [
            h("span", { class: one.isBad ? "bad" : "good" }, one.text),
            right(count(one.rows)),
            right(count(one.seq)),
            right(since(one.time)),
          ]),
          "Drift events, newest first")
      : h("p", {}, "No drift detected."));
  }

  function showColumns(columns) {
    const moved = columns.filter((one) => ["moderate", "large"].includes(one.drift));
    input.replaceChildren(moved.length
      ? table(
          ["column", "drift", right("stability index")],
          moved.map((one) => [one.name, h("span", { class: one.drift === "large" ? "bad" : "warning" }, one.drift), right(one.psi.toFixed(3))]),
          "Columns that moved, largest drift first")
      : h("p", {}, columns.some((one) => one.psi !== null) ? "No column has moved." : "Not known before 2,000 rows."));
    const drawn = moved.slice(0, PICTURES);
    pictures.hidden = !drawn.length;
    list.replaceChildren(...drawn.map(picture));
  }

  return { element, showEvents, showColumns };
}

// The bins of a picture: a bound of two ranges that few rows have is part of the range above it.
function joined(bins) {
  const ranges = [];
  let bound = null;
  for (const bin of bins) {
    const isBound = bin.low !== null && bin.low === bin.high;
    if (isBound && Math.max(bin.before, bin.recent) < FREQUENT) {
      if (bound !== null) ranges.push(bound);
      bound = bin;
      continue;
    }
    const isAbove = bound !== null && bin.low === bound.high;
    if (bound !== null && !isAbove) ranges.push(bound);
    ranges.push(isAbove ? { ...bin, before: bin.before + bound.before, recent: bin.recent + bound.recent } : bin);
    bound = null;
  }
  if (bound !== null) ranges.push(bound);
  return ranges;
}

// The shares of a column's values in both windows, as pairs of bars on one scale.
function picture({ name, bins: all }) {
  const bins = joined(all);
  const most = Math.max(...bins.flatMap((one) => [one.before, one.recent]));
  const width = (share_) => `${Math.max(0.5, (100 * share_) / most)}%`;
  return h("figure", { class: "windows" },
    h("figcaption", {}, h("strong", {}, h("bdi", {}, name))),
    h("ul", {}, bins.map((one) => {
      const label = rangeOf(one);
      const said = `${label}: ${percent(one.before)} before, ${percent(one.recent)} recently`;
      return h("li", { title: said }, h("span", { class: "label" }, h("bdi", { "aria-hidden": "true" }, label), h("span", { class: "offscreen" }, said)),
        svg("svg", { "aria-hidden": "true", height: 16 },
          svg("rect", { class: "before", y: 1, height: 6, width: width(one.before) }),
          svg("rect", { class: "recent", y: 8, height: 6, width: width(one.recent) })),
        h("span", { class: "number", "aria-hidden": "true" }, `${(100 * one.before).toFixed(1)} → ${(100 * one.recent).toFixed(1)} %`));
    })));
}

function rangeOf({ value, low, high }) {
  if (value !== null) return value;
  if (low === null) return `below ${number(high)}`;
  if (high === null) return `above ${number(low)}`;
  return low === high ? number(low) : `${number(low)} to ${number(high)}`;
}
