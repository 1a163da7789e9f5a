// Tab of drift: changes of the loss, and columns of the input that moved.

import { card, h, right, since, table } from "./dom.js";
import { count } from "./format.js";

export function driftPart() {
  const losses = h("div");
  const input = h("div");
  const element = h("div", { class: "grid" },
    card("Drift of the loss",
      h("p", { class: "small quiet" }, "Two detectors watch the loss of each row before it is learned. A loss that rises means that the stream has changed; it falls while a model learns."),
      losses),
    card("Drift of the input",
      h("p", { class: "small quiet" }, "The stability index compares about the last 1,000 rows of a column with the 10,000 before: moderate from 0.1, large from 0.25. The tab Features has all columns."),
      input));

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
  }

  return { element, showEvents, showColumns };
}
