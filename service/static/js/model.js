// Page of one model: cards that server-sent events update.

import { call, showError, modelPath } from "./api.js";
import { columnsCard } from "./columns.js";
import { card, facts, h } from "./dom.js";
import { listen } from "./events.js";
import { count, number, percent, time } from "./format.js";
import { ModelPlots } from "./model_plots.js";
import { contents } from "./contents.js";
import { pauseNotice } from "./pauses.js";
import { predictCard } from "./predict.js";
import { refitsCard } from "./refits.js";
import { versionsCard } from "./versions.js";

const REFRESH_MS = 3000;

// A fact that is left out while it has no value.
const figure = (value) => (value == null ? null : number(value));

export async function showModel(root, id, signal) {
  const view = await call(modelPath(id), { signal });
  const heading = h("h1", {}, id);
  const state = h("span", { class: "chip", role: "status" }, "connecting");
  const summary = h("div");
  const rollbacks = h("ul", { class: "small", "aria-label": "Rollbacks", hidden: true });
  const pause = pauseNotice(id, signal, () => reload());
  root.append(heading, state, pause.element, summary, rollbacks);
  const plots = new ModelPlots(view.spec, signal);
  const parts = contents(id, view.spec, signal);
  const columns = columnsCard(id, view.spec, signal);
  const versions = versionsCard(id, signal, () => reload());
  const refits = refitsCard(id, view.spec, signal);
  const specification = card("Specification", h("pre", { tabindex: "0" }, JSON.stringify(view.spec, null, 2)));
  root.append(
    h(
      "div",
      { class: "grid" },
      plots.elements,
      predictCard(id, view.spec, signal),
      columns.element,
      parts.elements,
      refits.element,
      versions.element,
      specification,
    ),
  );

  let stale = true;
  let rows = view.samples;

  // The timeline has no rollbacks, so the page lists those that happen while it is open.
  function noteRollback(event) {
    if (event.samples < rows) {
      const text = `Rolled back from ${count(rows)} to ${count(event.samples)} rows at ${time(Date.now())}, seq ${count(event.seq)}.`;
      rollbacks.prepend(h("li", {}, text));
      rollbacks.hidden = false;
      plots.rollbacks.push(event.samples);
    }
    rows = event.samples;
  }

  const refreshCards = () => Promise.all([parts, columns, refits, versions].map((one) => one.refresh()));

  async function reload() {
    stale = false;
    const timeline = await call(modelPath(id, "/timeline"), { signal });
    plots.begin(timeline);
    await refreshCards();
  }

  function showSummary(event) {
    summary.replaceChildren(
      facts({
        type: `${view.spec.algorithm}, ${view.spec.task}`,
        created: time(view.created),
        seq: count(event.seq),
        learned: count(event.samples),
        rejected: count(event.rejected),
        "rows/s": figure(event.rows_per_second),
        "non-zeros": count(event.nonzeros),
        ...(event.since_start && "error_rate" in event.since_start
          ? { error: percent(event.since_start.error_rate) }
          : {}),
        AUC: figure(event.since_start?.auc),
        "average precision": figure(event.since_start?.average_precision),
        gap: event.certificate ? number(event.certificate.relative_gap) : null,
      }),
    );
  }

  await reload();
  showSummary({ seq: view.seq, samples: view.samples, rejected: view.rejected });
  pause.update(view.paused);
  const timer = setInterval(() => {
    if (stale && !document.hidden) {
      stale = false;
      refreshCards().catch(showError);
    }
  }, REFRESH_MS);
  signal.addEventListener("abort", () => clearInterval(timer));
  listen(id, signal, (kind, event) => {
    if (kind === "open") state.textContent = "live";
    else if (kind === "lost") state.textContent = "disconnected, reconnecting";
    else if (kind === "deleted") state.textContent = "deleted";
    else if (event.samples !== undefined) {
      state.textContent = event.stale ? "stale: the store is unavailable" : "live";
      stale = true;
      showSummary(event);
      noteRollback(event);
      pause.update(event.paused);
      // After a rollback or a drift event the timeline has changed.
      if (plots.add(event)) reload().catch(showError);
    }
  }).catch(showError);
}
