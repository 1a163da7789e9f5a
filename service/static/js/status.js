// The health of a model in words: what it does now, and what needs attention.

import { h } from "./dom.js";
import { labelOf, nameOf, ratingOf } from "./errors.js";
import { ago, count, duration, number, percent, plural, rate, share, time } from "./format.js";
import { titleOf, unitOf } from "./intervals.js";
import { hrefOf } from "./names.js";

// Rows from which an error is compared with a baseline.
const MIN_ROWS = 100;
// Rows from which the averages of the last 1,000 rows are taken seriously.
const ENOUGH_ROWS = 1000;
// A row within this time, in seconds: the model learns.
const LEARNING_S = 10;
const LARGE_DRIFT = 0.25;
const MISSED_COVERAGE = 0.05;
const WIDE_GAP = 0.5;
const LAG_S = 30;
const REFUSED = 0.05;
const DROPPED = 0.01;

// What is wrong with a model, in the order of urgency. Each returns a text, or nothing; `short` is for a pill.
// `link`: the tab of the model, the title of the card there, or null for the page, and what the link says.
// `note` is no reason to look at the model first.
const CHECKS = [
  { kind: "bad", read: ({ storeProblem }) => storeProblem && `The store is away: ${storeProblem}. Learning answers 503 until it is back; predictions go on.` },
  { kind: "bad", link: ["", null, "See what to do"], read: ({ unreadable }) => unreadable && `This server cannot read the model: ${unreadable}.` },
  { kind: "bad", short: "lost records", read: ({ lost }) => lost > 0 &&
    `Since the server started, the store has lost ${plural(lost, "record")} that this model had learned. The server's log says after which seq: send these rows again.` },
  { kind: "bad", link: ["", null, "Resume"], read: ({ isPaused, quarantined, hasNotice }) => isPaused && !hasNotice &&
    `Learning is paused by the guard${quarantined ? `; ${plural(quarantined, "record")} ${quarantined === 1 ? "waits" : "wait"} in quarantine` : ""}.` },
  { kind: "warn", short: "behind", read: ({ lagS }) => lagS > LAG_S &&
    `A worker is ${duration(lagS)} behind the journal, so its predictions are old: it lacks CPU time or cannot read the store.` },
  { kind: "warn", short: ({ error, baseline }) => (error > baseline ? "worse than baseline" : "hardly better than baseline"),
    link: ({ spec }) => (spec.segments?.length ? ["segments", "Segments", "See where it fails"] : ["drift", "Drift of the loss", "See what has changed"]), read: errorText },
  { kind: "warn", short: "costly decisions", link: ["", "Costs", "See the costs"], read: ({ cost, constantCost, rows }) => rows >= MIN_ROWS && cost > constantCost &&
    `Decisions cost ${number(cost)} a row of ${lastOf(rows)}, more than always the same decision (${number(constantCost)}).` },
  { kind: "warn", short: "low coverage", link: ({ spec }) => ["", titleOf(spec), `See the ${unitOf(spec)}s`], read: coverageText },
  { kind: "warn", short: "input drifting", link: ["drift", "Drift of the input", "See the columns"], read: driftText },
  { kind: "warn", short: "rows refused", link: ["features", "Columns", "See the columns"], read: ({ refusedRatio, refusedColumn }) => refusedRatio >= REFUSED &&
    `${percent(refusedRatio)} of the rows of the last minute were refused${refusedColumn ? `, most for column ${refusedColumn}` : ""}; the answers of learn have the reasons.` },
  { kind: "warn", short: "labels dropped", link: ["settings", "Specification", "See the history"], read: ({ lostLabels, rows }) => lostLabels >= DROPPED * rows && lostLabels > 0 &&
    `${percent(lostLabels / rows)} of the labels came after the history had dropped their key: a group with more keys keeps them longer.` },
  { kind: "note", read: ({ forks }) => forks > 0 &&
    `The journal contradicted a worker ${forks === 1 ? "once" : `${count(forks)} times`} since the server started; the model was loaded again.` },
  { kind: "note", read: ({ expired }) => expired > 0 &&
    `${plural(expired, "predicted row")} expired without a label since the server started: REMEMBER_S says how long rows wait.` },
  { kind: "note", link: ["settings", "Refits", "Refit"], read: ({ gapRatio, rows }) => rows >= ENOUGH_ROWS && gapRatio >= WIDE_GAP &&
    `The certificate is wide: the optimum may be up to ${percent(Math.min(1, gapRatio))} below the objective of the weights.` },
];

const lastOf = (rows) => `the last ${plural(Math.min(rows, ENOUGH_ROWS), "row")}`;

function errorText({ rows, error, baseline, baselineName, auc, isRegression }) {
  if (!(rows >= MIN_ROWS) || !["warn", "bad"].includes(ratingOf(error, baseline, auc))) return null;
  const last = lastOf(rows);
  const show = isRegression ? number : percent;
  const errs = isRegression ? `The ${nameOf(true)} of ${last} is ${show(error)}` : `Errs in ${show(error)} of ${last}`;
  const how = show(error) === show(baseline) ? "no better than" : error > baseline ? "worse than" : "hardly better than";
  return `${errs}, ${how} ${labelOf(baselineName).replace("always", "always predicting")} (${show(baseline)}).`;
}

function coverageText({ coverage, rows, spec }) {
  const missed = rows >= ENOUGH_ROWS && (coverage ?? []).find(({ level, recent }) => recent < level - MISSED_COVERAGE);
  return missed && `Only ${percent(missed.recent)} of the last 1,000 labels are within their ${unitOf(spec)}s for ${share(missed.level)}.`;
}

function driftText({ moved }) {
  const large = (moved ?? []).filter(({ psi }) => psi >= LARGE_DRIFT).toSorted((a, b) => b.psi - a.psi);
  if (!large.length) return null;
  const others = large.length > 1 ? `, and so did ${plural(large.length - 1, "other column")}` : "";
  return `Column ${large[0].name} has moved (stability index ${number(large[0].psi)}, large from ${LARGE_DRIFT})${others}.`;
}

// `model`: {id, spec, isStoreAway, unreadable, isLoaded, isPaused, rows, perSecond, lastAt} and what CHECKS read.
// Returns the state and the warnings, each {kind, text}, where the kinds are good, idle, warn and bad; and what
// needs attention, the most urgent first, each {kind, text, href, action}, where the kind can be note.
export function statusOf(model) {
  const found = CHECKS.map((check) => ({ ...check, text: check.read(model) })).filter((one) => one.text);
  return {
    state: stateOf(model),
    warnings: found.filter((one) => one.short).map(({ kind, short }) => ({ kind, text: typeof short === "string" ? short : short(model) })),
    attention: found.map(({ kind, text, link }) => {
      const [tab, part, action] = (typeof link === "function" ? link(model) : link) ?? [];
      return { kind, text, href: action && hrefOf(model.id, tab, part), action };
    }),
  };
}

function stateOf({ isStoreAway, unreadable, isLoaded, isPaused, perSecond, lastAt, rows }) {
  if (unreadable) return { kind: "bad", text: "unreadable" };
  if (isStoreAway) return { kind: "bad", text: "store away" };
  if (isPaused) return { kind: "bad", text: "learning paused" };
  if (!isLoaded) return { kind: "idle", text: "not in memory" };
  if (perSecond > 0) return { kind: "good", text: `learning ${rate(perSecond)} rows/s` };
  if (!rows) return { kind: "idle", text: "waiting for rows" };
  // A rate takes two measurements, and rows between them.
  if (lastAt != null && Date.now() / 1000 - lastAt < LEARNING_S) return { kind: "good", text: "learning" };
  return { kind: "idle", text: lastAt == null ? "idle" : `idle, last row ${ago(lastAt)}`, since: lastAt };
}

export function pill({ kind, text, since }, attributes = {}) {
  return h("span", { class: `pill ${kind}`, title: since == null ? null : time(1000 * since), ...attributes }, text);
}

// A sentence that needs attention, with its link.
export const sentence = ({ kind, text, href, action }) =>
  h("p", { class: `attention ${kind}` }, text.replaceAll(" %", "\u00a0%"), href ? [" ", h("a", { href }, action)] : "");

const ORDER = ["bad", "warn", "good", "idle"];

// The kind that needs attention most.
export const worst = ({ state, warnings }) =>
  [state, ...warnings].map((one) => one.kind).toSorted((a, b) => ORDER.indexOf(a) - ORDER.indexOf(b))[0];

// 0 for models that need attention most, 2 for those that need none.
export const urgency = (status) => Math.min(2, ORDER.indexOf(worst(status)));
