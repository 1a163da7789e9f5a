// Page of all models: the server in five numbers, then the models as cards or as a list.

import { call, modelPath, request, showError } from "./api.js";
import { breakable, choice, h, right, svg, table, tile } from "./dom.js";
import { compared, errorOf, labelOf, nameOf, recent } from "./errors.js";
import { hrefOf } from "./names.js";
import { bytes, count, duration, number, percent, plural, rate } from "./format.js";
import { Scrapes, scrape } from "./scrape.js";
import { sentence, statusOf, urgency, worst } from "./status.js";

const REFRESH_MS = 3000;
const PAGE = 500;
const CARDS = 24;
const DURABILITY = {
  normal: "a power failure loses the last rows",
  full: "a power failure loses nothing",
  memory: "a killed store may lose everything",
  everysec: "a power failure loses about a second",
  always: "a power failure loses nothing",
};
const SORTS = {
  attention: "Attention first",
  name: "Name",
  error: "Error against baseline, worst first",
  activity: "Last row, newest first",
  rate: "Rows per second, most first",
};
// Ascending; what is not known comes last.
const KEYS = {
  attention: (model) => urgency(model.status),
  name: () => 0,
  error: (model) => -model.error / model.baseline,
  activity: (model) => -model.lastAt,
  rate: (model) => -model.perSecond,
};

export async function showOverview(root, signal) {
  const strip = serverStrip();
  const search = h("input", { type: "search", id: "search", placeholder: "Name, algorithm or task", oninput: () => show() });
  const sort = h("select", { id: "sort", onchange: () => show() },
    Object.entries(SORTS).map(([value, text]) => h("option", { value }, text)));
  let view = null;
  const views = choice("View", { cards: "Cards", list: "List" }, "cards", (chosen) => {
    view = chosen;
    show();
  });
  const tools = h("div", { class: "tools" },
    h("div", {}, h("label", { for: "search" }, "Search"), search),
    h("div", {}, h("label", { for: "sort" }, "Sort by"), sort),
    views, h("a", { class: "button", href: "#/compare" }, "Compare"));
  const note = h("p", { class: "quiet", role: "status" });
  const place = h("div");
  const first = h("button", { hidden: true, onclick: () => turn("") }, "First page");
  const more = h("button", { hidden: true, onclick: () => turn(next) }, "Next page");
  root.append(h("h1", {}, "Models"), strip.element, tools, note, place, h("p", { class: "row" }, first, more));

  const cards = new Map();
  const scrapes = new Scrapes();
  let [after, next, stored] = ["", null, []];

  async function turn(to) {
    after = to ?? "";
    await refresh();
  }

  async function refresh() {
    const page = await call(`models?limit=${PAGE}&after=${encodeURIComponent(after)}`, { signal });
    [stored, next] = [page.models, page.next];
    more.hidden = next === null;
    first.hidden = after === "";
    await show();
  }

  // Reads the numbers, which takes longer for many models, and shows them.
  async function measure() {
    const [ready, found] = await Promise.all([call("readyz?verbose", { signal }), scrape(signal)]);
    scrapes.add(found);
    strip.show(scrapes, ready);
    await show();
  }

  async function show() {
    const measured = scrapes.last ? scrapes.models() : new Map();
    const isStoreAway = scrapes.value("store_available") === 0;
    const models = stored.map((one) => ({
      id: one.id,
      spec: one.spec,
      isLoaded: one.samples !== undefined,
      isStoreAway,
      unreadable: one.unreadable,
      ...measured.get(one.id),
      rows: one.samples ?? measured.get(one.id)?.rows,
      isPaused: Boolean(one.paused),
    }));
    for (const model of models) model.status = statusOf(model);
    const wanted = search.value.trim().toLowerCase();
    const found = models.filter(({ id, spec }) => `${id} ${spec.algorithm} ${spec.task}`.toLowerCase().includes(wanted));
    const key = (model) => (Number.isNaN(KEYS[sort.value](model)) ? Infinity : KEYS[sort.value](model));
    found.sort((a, b) => key(a) - key(b) || (a.id < b.id ? -1 : 1));
    const isList = (view ?? (models.length > CARDS ? "list" : "cards")) === "list";
    for (const button of views.children) button.setAttribute("aria-pressed", String((button.textContent === "List") === isList));
    tools.hidden = !models.length;
    if (!models.length && !after) {
      note.textContent = "";
      place.replaceChildren(nothing());
      return;
    }
    if (!found.length) {
      note.textContent = "";
      place.replaceChildren(noMatch(search));
      return;
    }
    const shown = isList ? found : found.slice(0, CARDS);
    note.textContent = [
      wanted ? `${count(found.length)} of ${plural(models.length, "model")}` : "",
      shown.length < found.length ? `The first ${CARDS} are shown; the list has all.` : "",
      next !== null ? `This page has ${PAGE} models; search and sort cover this page.` : "",
    ].filter(Boolean).join(". ");
    if (isList) {
      keepFocus(place, list(shown));
      return;
    }
    for (const id of cards.keys()) if (!shown.some((one) => one.id === id)) cards.delete(id);
    const drawn = shown.map((model) => {
      const card = cards.get(model.id) ?? new Card(model.id);
      cards.set(model.id, card);
      card.update(model);
      return card;
    });
    const elements = drawn.map((card) => card.element);
    const now = place.firstChild;
    // Cards move only if their order has changed, so that the focus stays.
    if (now?.tagName !== "UL" || elements.length !== now.children.length || elements.some((one, k) => now.children[k] !== one)) {
      place.replaceChildren(h("ul", { class: "models" }, elements));
    }
    await Promise.all(drawn.map((card) => card.draw(signal)));
  }

  await refresh();
  const every = (run, timer = () => REFRESH_MS) => {
    const again = async () => {
      const began = performance.now();
      if (!document.hidden) await run().catch(showError);
      if (!signal.aborted) setTimeout(again, Math.max(timer(), 10 * (performance.now() - began)));
    };
    return again();
  };
  // The second scrape comes soon, because rates need two.
  every(measure, () => (scrapes.kept.length < 2 ? 1000 : REFRESH_MS));
  setTimeout(() => every(refresh), REFRESH_MS);
}

function serverStrip() {
  const tiles = {
    models: tile("Models"),
    rate: tile("Rows per second"),
    answers: tile("Answer time, 99th percentile"),
    memory: tile("Memory of models"),
    store: tile("Store"),
  };
  const element = h("dl", { class: "tiles", "aria-label": "Server" }, Object.values(tiles).map((one) => one.element));

  function show(scrapes, { store, durability, degraded, reason }) {
    const held = scrapes.value("models", { state: "held" });
    tiles.models.set(count(scrapes.value("models", { state: "stored" })), `${count(held)} in memory`);
    tiles.rate.set(rate(scrapes.perSecond("group_rows_sum")), "rows stored, mean of 10 seconds");
    const answered = scrapes.answerSeconds(0.99);
    tiles.answers.set(answered === null ? "–" : `≤ ${duration(answered)}`,
      answered === null ? "no requests within a minute" : "of learn and predict, within a minute");
    const [used, budget] = [scrapes.value("models_bytes"), scrapes.value("models_budget_bytes")];
    tiles.memory.set(bytes(used), `of ${bytes(budget)}; models beyond it are loaded when used`, { filled: used / budget });
    const kind = store.split(":")[0].split("+")[0];
    const name = { sqlite: "SQLite", redis: "Redis", rediss: "Redis" }[kind] ?? kind;
    if (degraded) tiles.store.set(`${name}: away`, reason, { kind: "bad" });
    else tiles.store.set(name, `durability ${durability}: ${DURABILITY[durability] ?? "rows are on other servers, too"}`);
  }

  return { element, show };
}

function nothing() {
  return h("section", { class: "card empty" },
    h("h2", {}, "There are no models yet."),
    h("p", { class: "quiet" }, "A model learns from rows that you send. Create one here, or send its specification with PUT to models/NAME."),
    h("p", {}, h("a", { href: "#/new", class: "button main" }, "Create a model")));
}

function noMatch(search) {
  const clear = h("button", { type: "button", onclick: () => {
    search.value = "";
    search.dispatchEvent(new Event("input"));
    search.focus();
  } }, "Clear the search");
  return h("section", { class: "card empty" },
    h("h2", {}, "No model matches ", h("bdi", {}, search.value.trim())),
    h("p", { class: "quiet" }, "The search covers names, algorithms and tasks."),
    h("p", { class: "actions" }, clear));
}

const figure = ({ isRegression }, value) => (!Number.isFinite(value) ? "–" : isRegression ? number(value) : percent(value));

function list(models) {
  const element = table(
    ["model", "state", "attention", right("error"), right("best baseline"), right("rows learned"), right("rows/s")],
    models.map((model) => {
      const { status } = model;
      return [
        h("div", { class: "state" }, dot(status), h("a", { href: hrefOf(model.id) }, breakable(model.id))),
        [status.state.text, h("div", { class: "small quiet" }, `${model.spec.algorithm}, ${model.spec.task}`)],
        status.attention.length ? sentence(status.attention[0]) : "",
        right(figure(model, model.error)),
        right(figure(model, model.baseline)),
        right(count(model.rows)),
        right(rate(model.perSecond)),
      ];
    }),
    "List of models; the error is of the last 1,000 rows",
  );
  element.classList.add("model-list");
  return element;
}

// Puts a new list in place of the old one. Focus and scroll position stay.
function keepFocus(place, element) {
  const old = place.firstChild;
  const href = place.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  const top = old?.scrollTop ?? 0;
  place.replaceChildren(element);
  element.scrollTop = top;
  if (href) element.querySelector(`a[href="${CSS.escape(href)}"]`)?.focus();
}

const dot = (status) => h("span", { class: `dot ${worst(status)}`, "aria-hidden": "true" });

class Card {
  constructor(id) {
    this.etag = null;
    this.id = id;
    this.state = h("p", { class: "state" });
    this.summary = h("p", { class: "small quiet" });
    this.attention = h("div");
    this.plot = h("div", { class: "sparkline" });
    this.error = h("p", { class: "small card-error" });
    this.element = h("li", { class: "card" },
      h("h2", {}, h("a", { href: hrefOf(id) }, breakable(id))), this.state, this.attention, this.plot, this.error, this.summary);
  }

  update(model) {
    const { status } = model;
    this.state.replaceChildren(dot(status), status.state.text);
    const found = JSON.stringify(status.attention);
    if (found !== this.found) {
      this.found = found;
      this.attention.replaceChildren(...status.attention.slice(0, 1).map(sentence));
    }
    const rows = model.rows === undefined ? "" : ` · ${plural(model.rows, "row")} learned`;
    this.summary.textContent = `${model.spec.algorithm}, ${model.spec.task}${rows}`;
    this.isLoaded = model.isLoaded;
    // The same error as on the page of the model: that of the last 1,000 rows.
    if (!Number.isFinite(model.error)) return;
    const { isRegression, rows: learned, error, baseline, baselineName } = model;
    const which = `${nameOf(isRegression)} of the last ${plural(Math.min(learned, 1000), "row")}`;
    const baselines = Number.isFinite(baseline) ? [{ label: labelOf(baselineName), value: baseline }] : [];
    this.said = `${which} ${figure(model, error)}, ${compared({ isRegression, value: error, baselines, show: isRegression ? number : percent })}`;
    this.plot.firstChild?.setAttribute("aria-label", this.said);
    this.error.replaceChildren(h("strong", {}, figure(model, error)), ` ${which}`,
      Number.isFinite(baseline) ? h("span", { class: "quiet" }, `best baseline ${figure(model, baseline)}`) : "");
  }

  // The recent error, and that of the best baseline (dashed).
  async draw(signal) {
    if (!this.isLoaded) return;
    const headers = this.etag ? { "if-none-match": this.etag } : {};
    const answer = await request(modelPath(this.id, "/timeline"), { headers, signal });
    if (!answer.ok) return; // 304, or the model was deleted
    this.etag = answer.headers.get("etag");
    const { points } = await answer.json();
    if (!points.length) {
      this.plot.replaceChildren();
      this.error.textContent = "No rows learned yet.";
      return;
    }
    const now = errorOf(points.at(-1).since_start);
    const best = now.baselines[0]?.id;
    const curve = (read) => recent(points, read).map((value, k) => [points[k].rows, value]);
    const own = curve((view) => errorOf(view).value);
    const base = curve((view) => errorOf(view).baselines.find((one) => one.id === best)?.value);
    this.plot.replaceChildren(sparkline(own, base, this.said ?? nameOf(now.isRegression)));
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
    svg("polygon", { points: `0,48 ${line(own)} 100,48` }),
    svg("polyline", { class: "baseline", points: line(base) }),
    svg("polyline", { points: line(own) }),
  );
}
