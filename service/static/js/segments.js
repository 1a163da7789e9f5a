// Tab of segments: metrics by the values of a column. Where the model loses the most comes first.

import { call, modelPath } from "./api.js";
import { bar, card, choice, facts, h, right, table } from "./dom.js";
import { count, number, percent } from "./format.js";

const SHOWN = 20;
const HARMFUL = 0.05;
const VIEWS = { since_start: "All rows", fading: "Recent rows" };
const MEASURES = { log_loss: "log-loss", error_rate: "error rate", mae: "absolute error" };
// Field -> title and format of its column; fields that are null have none.
const FIELDS = {
  error_rate: ["error rate", percent],
  mae: ["absolute error", number],
  log_loss: ["log-loss", number],
};
const CALIBRATION = {
  regression: ["mean prediction", "mean label", number],
  binary: ["mean probability", "rate of positives", percent],
};

export const hasSegments = (spec) => Boolean(spec.segments?.length);

export function segmentsPart(id, spec, signal) {
  let [column, view, isWhole, answer] = [spec.segments?.[0], "since_start", false, null];
  const note = h("p", { class: "small quiet" });
  const totals = h("div");
  const list = h("div");
  const columns = Object.fromEntries((spec.segments ?? []).map((name) => [name, name]));
  const element = card("Segments",
    h("div", { class: "actions" },
      choice("Column", columns, column, (name) => {
        [column, isWhole] = [name, false];
        return refresh();
      }),
      choice("Rows", VIEWS, view, (name) => {
        view = name;
        show();
      })),
    note, totals, list);
  element.classList.add("wide", "columns");

  async function refresh() {
    const wanted = column;
    const found = await call(modelPath(id, `/metrics?by=${encodeURIComponent(wanted)}`), { signal });
    if (wanted !== column) return; // another column was chosen since
    answer = found;
    show();
  }

  function show() {
    const [all, ...segments] = answer[view];
    note.textContent = all
      ? `Harm: the part of the ${MEASURES[answer.measure]} over all rows that goes away if the segment becomes like the average. ` +
        (view === "fading" ? "The weight of a row falls by 1/10,000 with each later row." : "The view Recent rows shows where the model has begun to fail.")
      : "No rows yet.";
    if (!all) {
      totals.replaceChildren();
      list.replaceChildren();
      return;
    }
    const fields = Object.entries(FIELDS).filter(([name]) => all[name] !== null);
    totals.replaceChildren(facts(Object.fromEntries(
      [["rows", count(Math.round(all.rows))], ...fields.map(([name, [title, format]]) => [title, format(all[name])])])));
    const shown = isWhole ? segments : segments.slice(0, SHOWN);
    const rest = segments.length - shown.length;
    list.replaceChildren(
      segmentTable(shown, all, fields, answer.measure),
      rest ? h("p", { class: "actions" }, h("button", { type: "button", onclick: () => {
        isWhole = true;
        show();
      } }, `Show ${count(rest)} more`)) : "");
  }

  function segmentTable(segments, all, fields, measure) {
    const [predicted, labels, format] = all.mean_prediction === null ? [] : CALIBRATION[spec.task];
    const most = Math.max(...segments.map((one) => Math.abs(one.harm)), 1e-300);
    return table(
      [column, right("harm"), "", right("of all rows"), ...fields.map(([, [title]]) => right(title)),
        ...(format ? [right(predicted), right(labels)] : [])],
      segments.map((one) => [
        h("div", { class: "texts" }, h("bdi", {}, one.value)),
        right(h("span", { class: one.harm > HARMFUL * all[measure] ? "bad" : null }, percent(all[measure] ? one.harm / all[measure] : 0))),
        bar(one.harm / most),
        right(percent(one.rows / all.rows)),
        ...fields.map(([name, [, show]]) => right(show(one[name]))),
        ...(format ? [right(format(one.mean_prediction)), right(format(one.mean_label))] : []),
      ]),
      `Segments by ${column}, most harmful first`);
  }

  return { element, refresh };
}
