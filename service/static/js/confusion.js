// Card of the confusion table: the classes of the last rows against the predicted ones.

import { call, modelPath } from "./api.js";
import { card, h } from "./dom.js";
import { number, percent, plural } from "./format.js";

const SHOWN = 8;
const OTHERS = "others";

export const hasClasses = (spec) => spec.task !== "regression";

export function confusionPart(id, spec, signal) {
  const note = h("p", { class: "small quiet" });
  const place = h("div");
  const element = card("Confusion", note, place);
  element.classList.toggle("wide", spec.task === "multiclass");
  element.hidden = true;
  let most = SHOWN;

  async function refresh() {
    const found = await call(modelPath(id, `/confusion?top=${most}`), { signal });
    element.hidden = !found.rows;
    if (!found.rows) return;
    const { calibration: of } = found;
    note.textContent = `The last ${plural(found.rows, "row")} by class and ${spec.costs ? "most probable" : "predicted"} class; on the diagonal both agree.` +
      (of ? ` Predicted probability of ${found.classes[1]}: ${percent(of.mean_probability)} in the mean, and ${percent(of.positive_rate)} were; calibration error ${percent(of.error)}.` : "");
    const isCut = spec.task === "multiclass" && found.counts.at(-1).some((one) => one);
    place.replaceChildren(confusionTable(found), isCut && most === SHOWN
      ? h("p", { class: "actions" }, h("button", { type: "button", onclick: () => {
          most = 100;
          refresh();
        } }, "Show all classes")) : "");
  }

  return { element, refresh };
}

// `found`: the answer of GET confusion.
export function confusionTable({ classes, counts }) {
  // Several classes have one more row and column: other classes, and no prediction.
  const isEmpty = (k) => k >= classes.length && !counts.some((row, i) => row[k] || (i === k && row.some((one) => one)));
  const used = counts.map((_, k) => k).filter((k) => !isEmpty(k));
  // A row of one other class that was predicted as another one is in the last cell, too: it is neither.
  const kindOf = (i, j) => (i !== j ? "miss" : i < classes.length ? "hit" : "");
  const name = (k) => (k < classes.length ? String(classes[k]) : OTHERS);
  const head = (k, attributes) => h("th", { ...attributes, title: name(k) }, h("bdi", {}, name(k)));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Confusion table" },
    h("table", { class: "confusion" },
      h("thead", {},
        h("tr", {}, h("td", {}), h("th", { colspan: used.length, scope: "colgroup" }, "predicted"), h("td", {})),
        h("tr", {}, h("th", { scope: "col" }, "class"), used.map((k) => head(k, { scope: "col" })), h("th", { scope: "col" }, "right"))),
      h("tbody", {}, used.map((i) => {
        const rows = counts[i].reduce((total, one) => total + one, 0);
        return h("tr", {}, head(i, { scope: "row" }), used.map((j) => cell(counts[i][j], rows, kindOf(i, j))),
          h("td", { class: "number" }, i < classes.length && rows ? percent(counts[i][i] / rows) : "–"));
      }))));
}

// Coloured by the share of its row in steps of an eighth.
const cell = (rows, all, kind) =>
  h("td", { class: `number ${rows ? `${kind} d${Math.ceil((8 * rows) / all)}` : "quiet"}` }, number(rows));
