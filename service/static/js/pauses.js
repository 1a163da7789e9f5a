// What is said of a model whose learning pauses, and how it goes on.

import { call, complain, modelPath } from "./api.js";
import { h } from "./dom.js";
import { count, number } from "./format.js";

// `signal` ends with the page; `changed` is called when learning goes on.
export function pauseNotice(id, signal, changed) {
  const element = h("div", { class: "paused", role: "alert", hidden: true });
  let shown = "";

  function resume(rows, text) {
    const button = h("button", {}, text);
    button.addEventListener("click", async () => {
      const fate = rows === "learn" ? "learned now" : "forgotten";
      if (!confirm(`Let ${id} learn on? The rows in quarantine are ${fate}.`)) return;
      button.disabled = true;
      try {
        await call(modelPath(id, `/resume?rows=${rows}`), { method: "POST" });
        await refresh();
        await changed();
      } catch (error) {
        complain(error);
      } finally {
        button.disabled = false;
      }
    });
    return button;
  }

  function tell(paused) {
    const now = JSON.stringify(paused ?? null);
    if (now === shown) return;
    shown = now;
    element.hidden = !paused;
    if (!paused) return;
    const what = paused.quantity === "loss" ? "its loss" : "the norm of its weights";
    element.replaceChildren(
      h(
        "p",
        {},
        h("strong", {}, "Learning is paused"),
        ` since seq ${count(paused.since)}: ${what} was ${number(paused.value)}, and may be ${number(paused.limit)} at most. `,
        paused.is_settled
          ? `The state is the one at seq ${count(paused.held_from)}; ${count(paused.held_records)} records are in quarantine.`
          : "The state is going back to the last good one.",
      ),
      h("p", { class: "row" }, resume("learn", "Learn the rows"), resume("drop", "Drop the rows")),
    );
  }

  async function refresh() {
    tell((await call(modelPath(id), { signal })).paused);
  }

  return { element, tell, refresh };
}
