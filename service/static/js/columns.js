// Card of the input profile: what the columns of a stream hold. Those that moved most come first.

import { call, modelPath } from "./api.js";
import { breakable, card, h, right, table } from "./dom.js";
import { count, number, percent } from "./format.js";

const VALUES_SHOWN = 3;

export function columnsPart(id, signal) {
  const note = h("p", { class: "quiet" });
  const list = h("div");
  const element = card("Columns", note, list);
  element.classList.add("wide", "columns");

  // Returns the columns, those that moved most first.
  async function refresh() {
    const { columns, has_more, rows } = await call(modelPath(id, "/columns"), { signal });
    note.textContent = columns.length
      ? "The stability index compares about the last 1,000 rows with the 10,000 before: drift is moderate from 0.1 and large from 0.25." +
        (columns.some((one) => one.missing_includes_zero && one.missing) ? " Rows do not store 0, so it counts as missing where marked." : "") +
        (rows > 8192 ? " After the first 8,192 rows, one in four counts." : "") +
        (has_more ? " There are more columns; only the first 256 count." : "")
      : "No rows yet.";
    list.replaceChildren(
      columns.length
        ? table(
            ["column", "drift", right("stability index"), "kind", right("rows"), right("missing"),
              "mean ± deviation, or frequent values", "last", right("refused")],
            columns.map(rowOf),
            "Columns, largest drift first",
          )
        : "",
    );
    return columns;
  }

  return { element, refresh };
}

function rowOf(one) {
  const missing = one.missing === null ? "?" : percent(one.missing / Math.max(1, one.count + one.missing));
  const zero = one.kind === "boolean" ? "false" : "0";
  return [
    wrapped(h("bdi", {}, breakable(one.name))),
    h("span", { class: { large: "bad", moderate: "warning" }[one.drift] }, one.drift ?? ""),
    right(one.psi === null ? "" : one.psi.toFixed(3)),
    one.kind,
    right(count(one.count)),
    right(one.missing && one.missing_includes_zero ? `${missing} or ${zero}` : missing),
    wrapped(...valuesOf(one)),
    typeof one.last === "number" ? number(one.last) : wrapped(isolated(one.last ?? "")),
    right(count(one.refused)),
  ];
}

// A text of users, which may turn the direction of what follows it.
const isolated = (text) => h("bdi", {}, text);

const wrapped = (...content) => h("div", { class: "texts" }, ...content);

function valuesOf(one) {
  const texts = one.others ? [`${count(one.others)} texts`] : [];
  if (one.mean !== null) {
    const unit = one.kind === "text" ? " words" : "";
    return [[`${number(one.mean)} ± ${number(one.sd)}${unit}`, ...texts].join(", ")];
  }
  // `false` is stored as 0, which counts as missing.
  const all = one.kind === "boolean" && one.missing_includes_zero ? one.count + (one.missing ?? 0) : one.count;
  return one.top
    .slice(0, VALUES_SHOWN)
    .map(({ value, count: rows }) => [isolated(value), ` ${percent(rows / Math.max(1, all))}`])
    .concat(texts)
    .flatMap((part, at) => (at ? [", ", part] : [part]));
}
