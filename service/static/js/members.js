// Tab of a portfolio's members: their shares over the rows, and a table.

import { call, modelPath } from "./api.js";
import { stackedShares } from "./charts.js";
import { breakable, card, h, right, table } from "./dom.js";
import { count, number, percent, plural } from "./format.js";

const DRAWN = 6;
const OTHERS = " others";

// Whether a model of this specification has members.
export const hasMembers = (spec) => spec.algorithm === "portfolio";

export function membersPart(id, spec, signal) {
  const picture = h("div");
  const list = h("div", { class: "whole-table" });
  const note = h("p", { class: "small quiet" });
  const shares = card("Shares in the prediction", note, picture);
  const element = h("div", { class: "grid" }, shares, card("Members", list));
  shares.classList.add("wide");
  element.lastChild.classList.add("wide");
  const ofClasses = spec.task === "multiclass" ? "Each class has members of its own; these are means over the classes. " : "";

  // `trends`: the answer of GET trends.
  async function refresh({ rows, series }) {
    const { members, promoted } = await call(modelPath(id, "/members"), { signal });
    const ordered = members.toSorted((a, b) => b.weight - a.weight);
    const past = series.filter((one) => one.name === "share");
    // Members that led once have a colour of their own, too.
    const most = ({ name, weight }) => Math.max(weight, ...(past.find((one) => one.of === name)?.values ?? []));
    const drawn = ordered.toSorted((a, b) => most(b) - most(a)).slice(0, DRAWN);
    const colours = new Map(drawn.map((one, k) => [one.name, `s${k + 1}`]));
    const names = [...colours].map(([name, colour]) => ({ name, colour }));
    const points = rows.map((x, at) => ({ x, shares: Object.fromEntries(past.map((one) => [one.of, one.values[at] ?? 0])) }));
    for (const point of points) point.shares[OTHERS] = 1 - names.reduce((total, { name }) => total + (point.shares[name] ?? 0), 0);
    if (ordered.length > DRAWN) names.push({ name: OTHERS, colour: "s8" });
    const best = ordered[0];
    note.textContent = `${promoted ? `${promoted} is promoted and predicts alone. ` : ""}${ofClasses}A member's share grows while it predicts better than the others. ` +
      (points.length > 1 ? `From ${count(rows[0])} to ${plural(rows.at(-1), "row")} learned, since the server loaded the model.` : "The server draws their course as rows come.");
    picture.replaceChildren(...(points.length < 2 ? [] : [
      stackedShares(points, names, `Shares of ${plural(ordered.length, "member")}; the largest is ${best.name} with ${percent(best.weight)}`),
      h("ul", { class: "legend" }, names.toReversed().map(({ name, colour }) => h("li", { class: "keyed" },
        h("span", { class: `swatch ${colour}`, "aria-hidden": "true" }), name === OTHERS ? `${count(ordered.length - DRAWN)} others` : breakable(name)))),
    ]));
    const hasErrors = ordered.some((one) => one.rolling.error_rate !== null);
    list.replaceChildren(table(
      ["member", right("share"), right("loss, last 1,000 rows"), ...(hasErrors ? [right("error, last 1,000 rows")] : []), right("resets")],
      ordered.map((one) => [
        h("span", { class: "keyed" }, h("span", { class: `swatch ${colours.get(one.name) ?? "s8"}`, "aria-hidden": "true" }), h("span", {}, breakable(one.name))),
        right(percent(one.weight)),
        right(number(one.rolling.loss)),
        ...(hasErrors ? [right(percent(one.rolling.error_rate))] : []),
        right(count(one.resets)),
      ]),
      "Members and their shares",
    ));
  }

  return { element, refresh };
}
