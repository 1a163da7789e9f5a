// Tab of a portfolio's members: their shares over the rows, and a table.

import { call, modelPath } from "./api.js";
import { stackedShares } from "./charts.js";
import { breakable, card, h, right, table } from "./dom.js";
import { count, number, percent } from "./format.js";

const DRAWN = 7;
const MAX_POINTS = 300;

// Whether a model of this specification has members.
export const hasMembers = (spec) => spec.algorithm === "portfolio" && spec.task !== "multiclass";

export function membersPart(id, created, signal) {
  const picture = h("div");
  const list = h("div");
  const note = h("p", { class: "small quiet" });
  const shares = card("Shares in the prediction", note, picture);
  const element = h("div", { class: "grid" }, shares, card("Members", list));
  shares.classList.add("wide");
  element.lastChild.classList.add("wide");
  // The server knows the present shares only. The tab collects them, and keeps them over a reload.
  const key = `shares ${id} ${created}`;
  let points = JSON.parse(sessionStorage.getItem(key) ?? "[]");

  async function refresh(rows) {
    const { members, promoted } = await call(modelPath(id, "/members"), { signal });
    const ordered = members.toSorted((a, b) => b.weight - a.weight);
    const point = { x: rows, shares: Object.fromEntries(members.map((one) => [one.name, one.weight])) };
    if (points.length && points.at(-1).x > rows) points = [];
    if (points.at(-1)?.x === rows) points.pop();
    points.push(point);
    if (points.length > MAX_POINTS) points = points.filter((_, k) => k % 2 === 0);
    try {
      sessionStorage.setItem(key, JSON.stringify(points));
    } catch {
      sessionStorage.removeItem(key); // No room: this model's shares end with the page.
    }
    const colours = new Map(ordered.slice(0, DRAWN).map((one, k) => [one.name, `s${k + 1}`]));
    const names = [...colours].map(([name, colour]) => ({ name, colour }));
    const others = (shown) => 1 - names.reduce((total, { name }) => total + (shown[name] ?? 0), 0);
    const drawn = points.map(({ x, shares: shown }) => ({ x, shares: { ...shown, " others": others(shown) } }));
    if (ordered.length > DRAWN) names.push({ name: " others", colour: "s8" });
    const best = ordered[0];
    const [first, last] = [points[0].x, points.at(-1).x];
    note.textContent = `${promoted ? `${promoted} is promoted and predicts alone. ` : ""}A member's share grows while it predicts better than the others. ` +
      (last > first ? `From ${count(first)} to ${count(last)} rows learned, as this tab saw them.` : `Now, at ${count(last)} rows learned.`);
    picture.replaceChildren(
      stackedShares(drawn, names, `Shares of ${count(ordered.length)} members; the largest is ${best.name} with ${percent(best.weight)}`));
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
