// Cards of a model's weights, members, support and curves.

import { call, modelPath } from "./api.js";
import { curvesCard, hasCurves } from "./curves.js";
import { card, facts, h, right, svg, table } from "./dom.js";
import { count, number, percent } from "./format.js";

// Whether a model of this specification has members, and whether it tracks its support.
const hasMembers = (spec) => spec.algorithm === "portfolio" && spec.task !== "multiclass";
const hasSupport = (spec) =>
  spec.algorithm.startsWith("rda") &&
  spec.task !== "multiclass" &&
  spec.map === null &&
  spec.scaling === "none" &&
  spec.norm === "none";

export function contents(id, spec, signal) {
  const weights = card("Largest weights");
  const members = card("Members");
  const support = card("Features in use");
  const curves = curvesCard();
  const optional = [members, support];
  optional.forEach((one) => (one.hidden = true));
  const fill = (place, ...children) => place.replaceChildren(place.firstChild, ...children);

  async function refresh() {
    const [heaviest, found, used] = await Promise.all([
      call(modelPath(id, "/weights?top=20"), { signal }),
      hasMembers(spec) ? call(modelPath(id, "/members"), { signal }) : null,
      hasSupport(spec) ? call(modelPath(id, "/support"), { signal }) : null,
    ]);
    const drawn = hasCurves(spec, found?.members) ? await call(modelPath(id, "/curves"), { signal }) : null;
    curves.show(drawn);
    fill(weights, weightTable(heaviest));
    members.hidden = found === null;
    if (found) fill(members, memberTable(found.members));
    support.hidden = used === null;
    if (used) {
      fill(
        support,
        facts({
          features: count(used.features.length),
          "unchanged since row": count(used.unchanged_since),
          "changes per 1,000 rows": number(used.changes_per_1000),
        }),
      );
    }
  }

  return { elements: [curves.element, weights, ...optional], refresh };
}

function weightTable({ weights, nonzeros, dim, intercept, coefficients }) {
  const top = Math.max(...weights.map((one) => Math.abs(one.weight)), 1e-300);
  const isMulticlass = weights.some((one) => one.label != null);
  const rows = weights.map((one) => [
    one.name ?? `#${one.index}`,
    ...(isMulticlass ? [String(one.label)] : []),
    right(number(one.weight)),
    bar(one.weight / top),
  ]);
  const head = ["feature", ...(isMulticlass ? ["class"] : []), { text: "weight", number: true }, ""];
  return h(
    "div",
    {},
    facts({
      "non-zeros": `${count(nonzeros)} of ${count(dim)}`,
      intercept: Array.isArray(intercept) ? null : number(intercept),
    }),
    rows.length ? table(head, rows, "Largest weights") : h("p", { class: "quiet" }, "All weights are zero."),
    coefficients?.length
      ? table(
          ["function", { text: "coefficient", number: true }, ""],
          coefficients.map((one) => [one.name, right(number(one.value)), one.dropped ? "dropped" : ""]),
          "Coefficients of the basis functions",
        )
      : null,
  );
}

export function bar(share) {
  const width = Math.min(Math.abs(share), 1) * 50;
  return svg(
    "svg",
    { class: "weight-bar", viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("rect", { class: share < 0 ? "minus" : "plus", x: share < 0 ? 50 - width : 50, y: 1, width, height: 8 }),
  );
}

function memberTable(members) {
  const ordered = members.toSorted((a, b) => b.weight - a.weight);
  const hasErrors = ordered.some((one) => one.rolling.error_rate !== null);
  return table(
    ["member", { text: "share", number: true }, { text: "loss, last 1,000 rows", number: true },
      ...(hasErrors ? [{ text: "error", number: true }] : [])],
    ordered.map((one) => [
      one.name,
      right(percent(one.weight)),
      right(number(one.rolling.loss)),
      ...(hasErrors ? [right(percent(one.rolling.error_rate))] : []),
    ]),
    "Members and their shares",
  );
}
