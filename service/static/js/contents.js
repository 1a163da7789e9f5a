// Cards of a model's weights, support and curves.

import { call, modelPath, showError } from "./api.js";
import { curvesCard, hasCurves } from "./curves.js";
import { bar, breakable, card, facts, h, right, table } from "./dom.js";
import { count, number } from "./format.js";
import { hasMembers } from "./members.js";

// Whether a model of this specification tracks its support.
const hasSupport = (spec) =>
  spec.algorithm.startsWith("rda") &&
  spec.task !== "multiclass" &&
  spec.map === null &&
  spec.scaling === "none" &&
  spec.norm === "none";

export function contents(id, spec, signal) {
  const weights = card("Largest weights");
  const support = card("Features in use");
  let chosen;
  const curves = curvesCard((label) => {
    chosen = label;
    drawCurves().catch(showError);
  });
  support.hidden = true;
  const fill = (place, ...children) => place.replaceChildren(place.firstChild, ...children);

  let hasAny = false;

  async function drawCurves() {
    if (!hasAny || spec.task !== "multiclass") {
      curves.show(hasAny ? await call(modelPath(id, "/curves"), { signal }) : null);
      return;
    }
    const { classes } = await call(modelPath(id, "/confusion?top=100"), { signal });
    const label = classes.includes(chosen) ? chosen : classes[0];
    const query = label === undefined ? "" : `?label=${encodeURIComponent(JSON.stringify(label))}`;
    curves.show(await call(modelPath(id, `/curves${query}`), { signal }), classes, label);
  }

  async function refresh() {
    const [heaviest, found, used] = await Promise.all([
      call(modelPath(id, "/weights?top=20"), { signal }),
      hasMembers(spec) ? call(modelPath(id, "/members"), { signal }) : null,
      hasSupport(spec) ? call(modelPath(id, "/support"), { signal }) : null,
    ]);
    hasAny = hasCurves(spec, found?.members);
    await drawCurves();
    fill(weights, weightTable(heaviest));
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

  return { weights, support, curves: curves.element, refresh };
}

function weightTable({ weights, nonzeros, dim, intercept, coefficients }) {
  const top = Math.max(...weights.map((one) => Math.abs(one.weight)), 1e-300);
  const isMulticlass = weights.some((one) => one.label != null);
  const rows = weights.map((one) => [
    h("span", {}, breakable(one.name ?? `#${one.index}`)),
    ...(isMulticlass ? [String(one.label)] : []),
    right(number(one.weight)),
    bar(one.weight / top),
  ]);
  const head = ["feature", ...(isMulticlass ? ["class"] : []), right("weight"), ""];
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
          ["function", right("coefficient"), ""],
          coefficients.map((one) => [one.name, right(number(one.value)), one.dropped ? "dropped" : ""]),
          "Coefficients of the basis functions",
        )
      : null,
  );
}
