// Card with the curves of splines: small multiples with one scale, so that their heights compare.

import { card, h, svg } from "./dom.js";
import { number } from "./format.js";

const FIRST = 12;
const [WIDTH, HEIGHT, MARGIN] = [160, 80, 4];

// Whether a model has curves: by its members, if they are listed, otherwise by its specification.
export function hasCurves(spec, members) {
  if (members) return members.some((one) => one.spec.algorithm === "splines");
  if (spec.algorithm !== "portfolio") return spec.algorithm === "splines";
  return spec.members === "full" || (Array.isArray(spec.members) && spec.members.some((one) => one.algorithm === "splines"));
}

// `choose(label)` asks for the curves of one class.
export function curvesCard(choose) {
  const select = h("select", { id: "curves-class", onchange: () => choose(labels[select.value]) });
  const ofClass = h("div", { class: "of-class", hidden: true }, h("label", { for: "curves-class" }, "Class"), select);
  const note = h("p", { class: "small quiet" });
  const list = h("ul", { class: "curves" });
  const more = h("button", { type: "button", onclick: () => { isWhole = !isWhole; draw(); } });
  const element = card("How each column matters", ofClass, note, list, more);
  element.classList.add("wide", "with-switch");
  element.hidden = true;
  let [curves, labels, isWhole] = [[], [], false];

  function draw() {
    const most = Math.max(...curves.map((one) => one.range), 1e-300);
    note.textContent = curves.length
      ? `What each value of a column adds to the score of ${labels.length ? "the class" : "splines"}. All have one vertical scale; the largest range comes first.`
      : "No curve yet: the first are drawn after 32 rows.";
    list.replaceChildren(...(isWhole ? curves : curves.slice(0, FIRST)).map((one) => h("li", {}, drawing(one, most))));
    more.textContent = isWhole ? `Show the first ${FIRST}` : `Show all ${curves.length}`;
    more.hidden = curves.length <= FIRST;
  }

  // `found`: the answer of GET curves, or null for a model without curves. `classes`: of a model of several classes.
  function show(found, classes = [], chosen = classes[0]) {
    element.hidden = found === null;
    curves = found?.curves ?? [];
    if (String(classes) !== String(labels)) {
      labels = classes;
      select.replaceChildren(...labels.map((label, k) => h("option", { value: k }, String(label))));
    }
    select.value = labels.indexOf(chosen);
    ofClass.hidden = labels.length < 2;
    if (found) draw();
  }

  return { element, show };
}

function drawing({ name, index, x, y, range }, most) {
  const title = name ?? `#${index}`;
  const [low, high] = [Math.min(...y), Math.max(...y)];
  const [first, last] = [x[0], x.at(-1)];
  const across = (value) => (last > first ? (WIDTH * (value - first)) / (last - first) : WIDTH / 2);
  const up = (value) => HEIGHT / 2 - ((HEIGHT / 2 - MARGIN) * (2 * value - low - high)) / most;
  // A curve of one knot is constant.
  const points = x.length > 1 ? x.map((value, k) => [across(value), up(y[k])]) : [[0, up(y[0])], [WIDTH, up(y[0])]];
  const said = `${title}: adds ${number(low)} to ${number(high)} for values from ${number(first)} to ${number(last)}`;
  return h(
    "figure",
    {},
    h("figcaption", {}, h("strong", { title }, title), h("span", { class: "quiet" }, `range ${number(range)}`)),
    svg(
      "svg",
      { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": said },
      svg("line", { x1: 0, x2: WIDTH, y1: HEIGHT / 2, y2: HEIGHT / 2 }),
      svg("polyline", { points: points.map((point) => point.map((one) => one.toFixed(2)).join(",")).join(" ") }),
    ),
    h("div", { class: "ends quiet", "aria-hidden": "true" }, h("span", {}, number(first)), h("span", {}, number(last))),
  );
}
