// The health of a model in words: what it does now, and what needs attention.

import { h } from "./dom.js";
import { ago, rate, time } from "./format.js";

// Rows from which an error is compared with a baseline.
const MIN_ROWS = 100;

// `model`: {isStoreAway, unreadable, isLoaded, isPaused, rows, error, baseline, drifting, perSecond, lastAt}.
// Returns the state and the warnings, each {kind, text}; the kinds are good, idle, warn and bad.
export function statusOf(model) {
  const warnings = [];
  if (model.rows >= MIN_ROWS && model.error > model.baseline) warnings.push({ kind: "warn", text: "worse than baseline" });
  if (model.drifting) warnings.push({ kind: "warn", text: "input drifting" });
  return { state: stateOf(model), warnings };
}

function stateOf({ isStoreAway, unreadable, isLoaded, isPaused, perSecond, lastAt, rows }) {
  if (unreadable) return { kind: "bad", text: "unreadable" };
  if (isStoreAway) return { kind: "bad", text: "store away" };
  if (isPaused) return { kind: "bad", text: "learning paused" };
  if (!isLoaded) return { kind: "idle", text: "not in memory" };
  if (perSecond > 0) return { kind: "good", text: `learning ${rate(perSecond)} rows/s` };
  if (!rows) return { kind: "idle", text: "waiting for rows" };
  return { kind: "idle", text: lastAt == null ? "idle" : `idle, last row ${ago(lastAt)}`, since: lastAt };
}

export function pill({ kind, text, since }, attributes = {}) {
  return h("span", { class: `pill ${kind}`, title: since == null ? null : time(1000 * since), ...attributes }, text);
}

const ORDER = ["bad", "warn", "good", "idle"];

// The kind that needs attention most.
export const worst = ({ state, warnings }) =>
  [state, ...warnings].map((one) => one.kind).toSorted((a, b) => ORDER.indexOf(a) - ORDER.indexOf(b))[0];
