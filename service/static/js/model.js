// Page of one model: status, four numbers and tabs, which server-sent events update.

import { Problem, call, showError, modelPath } from "./api.js";
import { columnsPart } from "./columns.js";
import { contents } from "./contents.js";
import { breakable, card, facts, h, since, tile } from "./dom.js";
import { confusionPart, hasClasses } from "./confusion.js";
import { decisionsPart } from "./decisions.js";
import { driftPart } from "./drift.js";
import { compared, errorOf, lossOf, nameOf, ratingOf } from "./errors.js";
import { listen } from "./events.js";
import { ago, count, number, percent, rate, seconds, time } from "./format.js";
import { historyOf } from "./history.js";
import { hasIntervals, intervalsPart } from "./intervals.js";
import { manageButtons, remove } from "./manage.js";
import { hasMembers, membersPart } from "./members.js";
import { ModelPlots } from "./model_plots.js";
import { hrefOf } from "./names.js";
import { pauseNotice } from "./pauses.js";
import { predictPart } from "./predict.js";
import { refitsCard } from "./refits.js";
import { Scrapes, scrape } from "./scrape.js";
import { hasSegments, segmentsPart } from "./segments.js";
import { firstSteps } from "./snippets.js";
import { pill, sentence, statusOf } from "./status.js";
import { Tabs } from "./tabs.js";
import { versionsPart } from "./versions.js";

const REFRESH_MS = 3000;
const SCRAPE_MS = 15_000;
const RATE_S = 10;

// Shows a tab, and of it the card with the title `part`. `ready` gets a function that shows other ones.
export async function showModel(root, id, [tab, part], signal, ready) {
  let view;
  try {
    view = await call(modelPath(id), { signal });
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    if ([404, 422].includes(error.status)) root.append(unknown(id));
    else if (error.type === "/problems/unreadable-journal") root.append(unreadable(id, error.message));
    else throw error;
    return;
  }
  const { spec } = view;
  const head = header(id, view, manageButtons(id, spec, () => live.rows, signal));
  const pause = pauseNotice(id, signal, () => reload());
  const tiles = numbers(spec);
  const plots = new ModelPlots(spec, signal);
  const columns = columnsPart(id, signal);
  const members = membersPart(id, spec, signal);
  const inside = contents(id, spec, signal);
  const drift = driftPart();
  const decisions = decisionsPart(spec, plots.first, signal);
  const segments = segmentsPart(id, spec, signal);
  const versions = versionsPart(id, signal, () => reload());
  const refits = refitsCard(id, spec, signal);
  const predict = predictPart(id, spec);
  const empty = firstSteps(id, spec);
  const history = historyOf(id, signal);
  const intervals = hasIntervals(spec) ? intervalsPart(id, spec, plots.first, signal) : null;
  const confusion = hasClasses(spec) ? confusionPart(id, spec, signal) : null;
  plots.ranged.push(...decisions.plots, ...(intervals?.plots ?? []));
  const charts = h("div", { class: "grid" }, plots.errorCard, predict.element,
    // A wide card is before the others, so that they fill a line.
    spec.task === "multiclass" ? [confusion.element, plots.lossCard] : [plots.lossCard, confusion?.element ?? ""], decisions.elements, intervals?.elements ?? "",
    plots.rankingCard, plots.gapCard, plots.rateCard, plots.delayCard);
  const grid = (...children) => h("div", { class: "grid" }, children);
  const tabs = new Tabs(id, {
    overview: ["Overview", [empty, charts]],
    ...(hasMembers(spec) ? { members: ["Members", [members.element]] } : {}),
    features: ["Features", [grid(inside.weights, plots.nonzerosCard, inside.support, plots.supportCard, inside.curves, columns.element)]],
    ...(hasSegments(spec) ? { segments: ["Segments", [h("div", { class: "grid" }, segments.element)]] } : {}),
    drift: ["Drift", [drift.element]],
    versions: ["Versions", [versions.element]],
    settings: ["Settings", [grid(settings(view), refits.element,
      card("Specification", h("pre", { tabindex: "0" }, JSON.stringify(spec, null, 2))))]],
  }, (name) => refreshTab(name));
  root.append(head.element, pause.element, tiles.element, tabs.element);

  let stale = true;
  let seq = view.seq;
  const live = { id, spec, rows: view.samples, lastAt: null, isPaused: Boolean(view.paused), link: "connecting", isLoaded: true, hasNotice: true };
  // Rows learned at the last events: [seconds, rows].
  let arrivals = [[Date.now() / 1000, view.samples]];

  const refreshTab = (name) => Promise.all(({
    overview: [confusion, intervals].filter(Boolean),
    features: [inside],
    segments: [segments],
    versions: [versions],
    settings: [refits],
  }[name] ?? []).map((one) => one.refresh())).catch(showError);

  async function refresh() {
    const [found] = await Promise.all([columns.refresh(), refreshTrends(), refreshTab(tabs.shown)]);
    live.moved = found;
    predict.know(found);
    drift.showColumns(found);
  }

  const hasTrends = spec.task === "binary" || hasMembers(spec) || Boolean(intervals ?? spec.costs ?? spec.alert_rate);

  async function refreshTrends() {
    if (!hasTrends) return;
    const trends = await call(modelPath(id, "/trends"), { signal });
    for (const one of [plots, decisions, intervals]) one?.showTrends(trends);
    if (hasMembers(spec)) await members.refresh(trends);
  }

  async function reload() {
    stale = false;
    const timeline = await call(modelPath(id, "/timeline"), { signal });
    const events = await history(timeline);
    live.lastAt ??= timeline.times.length ? seconds(timeline.times.at(-1).time) : null;
    plots.begin(timeline, events);
    drift.showEvents(events);
    versions.showChanges(events);
    await refresh();
    showStatus();
  }

  function showStatus() {
    const now = Date.now() / 1000;
    arrivals = arrivals.filter(([at], k) => now - at <= RATE_S || k === arrivals.length - 1);
    const [first, last] = [arrivals[0], arrivals.at(-1)];
    live.perSecond = last && now - last[0] < RATE_S && last[1] > first[1] ? (last[1] - first[1]) / Math.max(1, now - first[0]) : 0;
    head.show(live);
    tiles.showRate(live);
    const isEmpty = !live.rows && !live.isPaused;
    empty.hidden = !isEmpty;
    charts.hidden = isEmpty;
  }

  function take(event) {
    const now = Date.now() / 1000;
    stale = true;
    live.link = "open";
    const isPaused = Boolean(event.paused);
    if (event.samples > live.rows) live.lastAt = now;
    if (event.samples < live.rows) arrivals = [];
    arrivals.push([now, event.samples]);
    // Of a paused model rows take a seq, too.
    const isControl = isPaused !== live.isPaused || (!isPaused && event.seq > seq && event.samples <= live.rows);
    [seq, live.rows, live.isPaused] = [event.seq, event.samples, isPaused];
    const { isRegression, value: error, baselines: [best] } = errorOf(event.rolling);
    Object.assign(live, {
      isRegression, error, baseline: best?.value, baselineName: best?.id, auc: event.rolling.auc,
      gapRatio: event.certificate?.relative_gap,
      cost: event.costs?.rolling.cost, constantCost: event.costs?.rolling.best_constant,
      coverage: (event.intervals ?? []).map((one) => ({ level: one.level, recent: one.recent_coverage })),
    });
    tiles.show(event);
    decisions.add(event);
    intervals?.add(event);
    pause.update(event.paused);
    showStatus();
    // After a rollback or a drift event the timeline has changed, and after a control the history.
    if (plots.add(event) || isControl) reload().then(reveal).catch(showError);
  }

  // Moves to the card that the address names, once the cards before it have their content: after a reload by the first
  // event, or after the refresh of another tab. The address is then that of the tab, so that the same link works again.
  function reveal() {
    const found = part && [...root.querySelectorAll("section.card")].find((one) => one.getAttribute("aria-label") === part && one.checkVisibility());
    if (!found) return;
    part = null;
    window.history.replaceState(null, "", hrefOf(id, tabs.shown === "overview" ? "" : tabs.shown));
    found.tabIndex = -1;
    found.focus({ preventScroll: true });
    found.scrollIntoView();
  }

  async function goTo(name, title) {
    part = title;
    await tabs.select(name);
    reveal();
  }

  // What the server counts of a model is in its metrics only.
  const scrapes = new Scrapes();
  async function measure() {
    if (document.hidden) return;
    const found = await scrape(signal).catch(() => null); // the page works without
    if (found === null) return;
    scrapes.add(found);
    const { lost, forks, lagS, refusedRatio, refusedColumn, lostLabels, expired } = scrapes.models().get(id) ?? {};
    Object.assign(live, { lost, forks, lagS, refusedRatio, refusedColumn, lostLabels, expired });
    showStatus();
  }

  // A model with rows does not ask for the first ones while its curves are read.
  showStatus();
  tabs.select(tab);
  ready(goTo);
  pause.update(view.paused);
  await reload();
  const timers = [
    setInterval(() => {
      if (!stale || document.hidden) return;
      stale = false;
      (plots.isCoarse ? reload() : refresh()).catch(showError);
    }, REFRESH_MS),
    setInterval(showStatus, 1000),
    setInterval(measure, SCRAPE_MS),
  ];
  measure();
  signal.addEventListener("abort", () => timers.forEach(clearInterval));
  addEventListener("health", ({ detail }) => {
    Object.assign(live, detail);
    showStatus();
  }, { signal });
  listen(id, signal, (kind, event) => {
    if (event?.samples !== undefined) take(event);
    else if (kind !== "progress") live.link = kind;
    showStatus();
  }).catch(showError);
}

function unknown(id) {
  document.title = "Unknown model · Dualstream";
  return h("section", { class: "card empty" },
    h("p", { class: "code" }, "404"),
    h("h1", {}, `There is no model ${id}`),
    h("p", { class: "quiet" }, "It was deleted or never created, or your key does not match it. Names are case-sensitive."),
    h("p", { class: "actions" },
      h("a", { href: "#/", class: "button main" }, "All models"), h("a", { href: "#/new", class: "button" }, "New model")));
}

function unreadable(id, reason) {
  return h("section", { class: "card empty" },
    h("h1", {}, "This server cannot read ", breakable(id)),
    h("p", { class: "error" }, breakable(reason)),
    h("p", { class: "quiet" }, "Its records are damaged, or a newer version of Dualstream wrote them. Restore a backup of the store, or start the newer version. " +
      "The server tries again every minute, and serves the other models."),
    h("p", { class: "actions" },
      h("a", { href: "#/", class: "button main" }, "All models"), h("button", { type: "button", class: "danger", onclick: () => remove(id) }, "Delete")));
}

const LINKS = {
  connecting: { kind: "idle", text: "connecting" },
  lost: { kind: "bad", text: "disconnected, reconnecting" },
  deleted: { kind: "bad", text: "deleted" },
};
const TASKS = { binary: "two classes", multiclass: "several classes", regression: "a number" };

function header(id, { spec, created }, buttons) {
  const pills = h("div", { class: "pills" });
  const state = h("span", { role: "status" });
  const warnings = h("span", { class: "pills" });
  const attention = h("div", { "aria-live": "polite" });
  pills.append(state, warnings);
  const element = h("header", { class: "model-head" },
    h("nav", { "aria-label": "Back" }, h("a", { href: "#/" }, "← All models")),
    h("div", { class: "title" }, h("h1", {}, breakable(id)), pills, buttons),
    h("p", { class: "quiet" }, `Predicts ${TASKS[spec.task]} · algorithm ${spec.algorithm} · created `, since(seconds(created))),
    attention);
  let shown = "";

  function show(live) {
    const status = statusOf(live);
    const found = LINKS[live.link] ?? status.state;
    const now = JSON.stringify([found, status]);
    if (now === shown) return;
    shown = now;
    state.replaceChildren(pill(found));
    warnings.replaceChildren(...status.warnings.map((one) => pill(one)));
    attention.replaceChildren(...status.attention.map(sentence));
  }

  return { element, show };
}

// Four numbers. The last one is the gap; of models without a certificate it is what ranks or counts.
function numbers(spec) {
  const isRegression = spec.task === "regression";
  const what = nameOf(isRegression);
  const [error, loss, rows, last] = [tile(`${what[0].toUpperCase()}${what.slice(1)}, last 1,000 rows`), tile("Loss, last 1,000 rows"), tile("Rows learned"),
    tile(spec.task === "binary" && spec.algorithm !== "dual_ascent" ? "AUC, last 1,000 rows" : "Distance from the optimum")];
  const element = h("dl", { class: "tiles four", "aria-label": "Numbers of the model" }, [error, loss, rows, last].map((one) => one.element));

  let learned = null;

  function showRate({ perSecond, lastAt }) {
    if (learned === null) return;
    const now = perSecond > 0 ? `${rate(perSecond)} per second` : !learned.samples ? "none yet" : lastAt == null ? "none now" : `the last one ${ago(lastAt)}`;
    rows.set(count(learned.samples), `${now}; ${count(learned.rejected)} refused by the learner`);
  }

  function show({ rolling, since_start: all, samples, rejected, certificate, nonzeros }) {
    const found = errorOf(rolling);
    const isEmpty = found.value == null;
    error.set(found.show(found.value), compared(found), { kind: ratingOf(found.value, found.baselines[0]?.value, rolling.auc) });
    loss.set(number(rolling.loss), `${lossOf(spec)}, mean of a row${isEmpty ? "" : `; ${number(all.loss)} since start`}`);
    learned = { samples, rejected };
    const name = last.element.firstChild;
    if (certificate) {
      name.textContent = "Distance from the optimum";
      last.set(certificate.relative_gap == null ? "–" : `≤ ${percent(certificate.relative_gap)}`,
        certificate.reason ?? `of the objective: gap ${number(certificate.gap)} between primal and dual`);
    } else if (rolling.auc != null) {
      name.textContent = "AUC, last 1,000 rows";
      last.set(number(rolling.auc), `0.5 is chance, 1 is perfect; ${number(all.auc)} since start`);
    } else {
      name.textContent = "Non-zero weights";
      last.set(count(nonzeros), "this model has no certificate of its distance from the optimum");
    }
  }

  return { element, show, showRate };
}

function settings({ spec, created }) {
  return card("Model", facts({
    predicts: TASKS[spec.task],
    algorithm: spec.algorithm,
    loss: lossOf(spec),
    features: spec.features.kind === "hashed" ? "by name" : `numbered from 1 to ${count(spec.features.dim)}`,
    guard: spec.guard?.mode ?? spec.guard ?? "off",
    created: time(created),
    "specification version": String(spec.spec_version),
  }));
}
