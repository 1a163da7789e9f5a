// Notice of a paused model, with buttons that resume it.

import { call, modelPath } from "./api.js";
import { act, confirmed, h } from "./dom.js";
import { count, number, plural } from "./format.js";

// `signal` aborts with the page; `changed` is called after learning was resumed.
export function pauseNotice(id, signal, changed) {
  const element = h("div", { class: "paused", role: "alert", hidden: true });
  let shown = "";

  function resume(rows, text) {
    const button = h("button", {}, text);
    button.addEventListener("click", async () => {
      const fate = rows === "learn" ? "learned" : "dropped";
      if (!(await confirmed("Resume learning?", `${id} learns again. The rows in quarantine are ${fate}.`, text))) return;
      act(button, async () => {
        await call(modelPath(id, `/resume?rows=${rows}`), { method: "POST" });
        await refresh();
        await changed();
      });
    });
    return button;
  }

  function update(paused) {
    const now = JSON.stringify(paused ?? null);
    if (now === shown) return;
    shown = now;
    element.hidden = !paused;
    if (!paused) return;
    const what = paused.quantity === "loss" ? "the loss" : "the norm of the weights";
    element.replaceChildren(
      h(
        "p",
        {},
        h("strong", {}, "Learning is paused"),
        ` since seq ${count(paused.since)}: ${what} was ${number(paused.value)}, above the limit ${number(paused.limit)}. `,
        paused.is_settled
          ? `The state is the one at seq ${count(paused.held_from)}; in quarantine: ${plural(paused.held_records, "record")}.`
          : "The state is being rolled back to the last good check.",
      ),
      h("p", { class: "row" }, resume("learn", "Learn the rows"), resume("drop", "Drop the rows")),
    );
  }

  async function refresh() {
    update((await call(modelPath(id), { signal })).paused);
  }

  return { element, update, refresh };
}
