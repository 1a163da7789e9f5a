// Tab of segments: metrics by the values of a column. Where the model loses the most comes first.

import { call, modelPath, showError } from "./api.js";
import { bar, card, choice, facts, h, right, table } from "./dom.js";
import { count, number, percent, share } from "./format.js";

const SHOWN = 20;
const HARMFUL = 0.05;
const VIEWS = { since_start: "All rows", fading: "Recent rows" };
const MEASURES = { log_loss: "log-loss", error_rate: "error rate", mae: "absolute error" };
const CALIBRATION = {
  regression: ["mean prediction", "mean label", number],
  binary: ["mean probability", "rate of positives", percent],
};

// Title, format and reader of each quantity that the model has.
function fieldsOf(all, task) {
  const [predicted, labels, format] = CALIBRATION[task] ?? [];
  return [
    ["error rate", percent, (one) => one.error_rate],
    ["absolute error", number, (one) => one.mae],
    ["log-loss", number, (one) => one.log_loss],
    [predicted, format, (one) => one.mean_prediction],
    [labels, format, (one) => one.mean_label],
    ...Object.keys(all.coverage ?? {}).map((level) => [`coverage ${share(level)}`, percent, (one) => one.coverage[level]]),
    ["alerts", percent, (one) => one.alert_rate],
  ].filter(([, , read]) => read(all) !== null);
}

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
        refresh().catch(showError);
      }),
      choice("Rows", VIEWS, view, (name) => {
        view = name;
        if (answer) show();
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
    const fields = fieldsOf(all, spec.task);
    totals.replaceChildren(facts(Object.fromEntries(
      [["rows", count(Math.round(all.rows))], ...fields.map(([title, format, read]) => [title, format(read(all))])])));
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
    const most = Math.max(...segments.map((one) => Math.abs(one.harm)), 1e-300);
    return table(
      [column, right("harm"), "", right("of all rows"), ...fields.map(([title]) => right(title))],
      segments.map((one) => [
        h("div", { class: "texts" }, h("bdi", {}, one.value)),
        right(h("span", { class: one.harm > HARMFUL * all[measure] ? "bad" : null }, percent(all[measure] ? one.harm / all[measure] : 0))),
        bar(one.harm / most),
        right(percent(one.rows / all.rows)),
        ...fields.map(([, show, read]) => right(show(read(one)))),
      ]),
      `Segments by ${column}, most harmful first`);
  }

  return { element, refresh };
}
