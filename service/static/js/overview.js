// Page of all models, each with a plot of its error.

import { call, showError, modelPath, request } from "./api.js";
import { facts, h, svg } from "./dom.js";
import { count, number, percent } from "./format.js";
import { measure, recent } from "./metrics.js";

const REFRESH_MS = 3000;
const PAGE = 24;

export async function showModels(root, signal) {
  const list = h("ul", { class: "models" });
  const more = h("button", { hidden: true, onclick: () => turn(next) }, "Next page");
  const first = h("button", { hidden: true, onclick: () => turn("") }, "First page");
  const empty = h(
    "p",
    { hidden: true },
    "There are no models yet. ",
    h("a", { href: "#/new" }, "Create one"),
    ", or PUT its specification to models/NAME.",
  );
  root.append(h("h1", {}, "Models"), empty, list, h("p", { class: "row" }, first, more));
  const cards = new Map();
  let after = "";
  let next = null;

  async function turn(to) {
    after = to ?? "";
    await refresh();
  }

  async function refresh() {
    const page = await call(`models?limit=${PAGE}&after=${encodeURIComponent(after)}`, { signal });
    next = page.next;
    more.hidden = next === null;
    first.hidden = after === "";
    empty.hidden = page.models.length > 0 || after !== "";
    const shown = page.models.map((model) => {
      const card = cards.get(model.id) ?? new Card(model.id);
      cards.set(model.id, card);
      card.update(model);
      return card;
    });
    for (const card of shown) if (card.element.parentNode !== list) list.append(card.element);
    for (const [id, card] of cards) {
      if (!shown.includes(card)) {
        card.element.remove();
        cards.delete(id);
      }
    }
    await Promise.all(shown.map((card) => card.draw(signal)));
  }

  await refresh();
  const timer = setInterval(() => {
    if (!document.hidden) refresh().catch(showError);
  }, REFRESH_MS);
  signal.addEventListener("abort", () => clearInterval(timer));
}

class Card {
  constructor(id) {
    this.id = id;
    this.etag = null;
    this.summary = h("div");
    this.plot = h("div");
    const title = h("h2", {}, h("a", { href: `#/models/${encodeURIComponent(id)}` }, id));
    this.element = h("li", { class: "card" }, title, this.plot, this.summary);
  }

  update(model) {
    this.isLoaded = model.samples !== undefined;
    const { task, algorithm } = model.spec;
    this.summary.replaceChildren(
      model.unreadable ? h("p", { class: "error" }, model.unreadable) : "",
      model.paused ? h("p", { class: "error" }, `paused since seq ${count(model.paused.since)}`) : "",
      facts({
        type: `${algorithm}, ${task}`,
        seq: count(model.seq),
        learned: this.isLoaded ? count(model.samples) : "not in memory",
      }),
    );
  }

  // Plot the recent error, and that of the first baseline (dashed).
  async draw(signal) {
    if (!this.isLoaded) return;
    const headers = this.etag ? { "if-none-match": this.etag } : {};
    const answer = await request(modelPath(this.id, "/timeline"), { headers, signal });
    if (!answer.ok) return; // 304, or the model was deleted
    this.etag = answer.headers.get("etag");
    const { points } = await answer.json();
    if (!points.length) {
      this.plot.replaceChildren(h("p", { class: "quiet small" }, "No rows learned yet."));
      return;
    }
    const { name, baselines, ratio } = measure(points.at(-1).since_start);
    const curve = (read) => recent(points, read).map((value, k) => [points[k].rows, value]);
    const own = curve((view) => view[name]);
    const base = curve((view) => baselines(view)[0].value);
    const now = points.at(-1).since_start;
    const show = ratio ? percent : number;
    const baseline = baselines(now)[0];
    const text = `${name.replace("_", " ")} ${show(now[name])}, ${baseline.label} ${show(baseline.value)}`;
    this.plot.replaceChildren(sparkline(own, base, text), h("p", { class: "small" }, text));
  }
}

function sparkline(own, base, label) {
  const values = [...own, ...base].map(([, y]) => y).filter((y) => y != null);
  const top = Math.max(...values, 1e-12);
  const width = own.at(-1)[0];
  const line = (points) =>
    points.filter(([, y]) => y != null).map(([x, y]) => `${(x / width) * 100},${46 - (y / top) * 44}`).join(" ");
  return svg(
    "svg",
    { class: "spark", viewBox: "0 0 100 48", preserveAspectRatio: "none", role: "img", "aria-label": label },
    svg("polyline", { class: "baseline", points: line(base) }),
    svg("polyline", { points: line(own) }),
  );
}
