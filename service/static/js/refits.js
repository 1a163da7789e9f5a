// Refits of a model that has a window to solve, and how far it is from the optimum of its window.

import { call, complain, modelPath } from "./api.js";
import { card, facts, h, right, table } from "./dom.js";
import { count, number } from "./format.js";

const UNDER_WAY = ["waiting", "running", "entering"];

export function refitsCard(id, spec, signal) {
  const begin = h("button", {}, "Refit now");
  const compare = h("button", {}, "Compare with the optimum");
  const optimum = h("div", { role: "status" });
  const list = h("div");
  const element = card("Refits", h("p", { class: "row" }, begin, compare), optimum, list);
  element.hidden = !["dual_ascent", "semiparametric"].includes(spec.algorithm);
  // A refit of a semiparametric model tells that itself.
  compare.hidden = spec.algorithm === "semiparametric";

  begin.addEventListener("click", () =>
    act(begin, () => call(modelPath(id, "/refit"), { method: "POST", body: {}, signal })),
  );
  compare.addEventListener("click", () =>
    act(compare, async () => {
      const { reference } = await call(modelPath(id, "/certificate?reference=true"), { signal });
      optimum.replaceChildren(
        facts({
          served: number(reference.served),
          "least possible": number(reference.lower_bound),
          gap: number(reference.gap),
          [`regret over ${count(reference.regret_rows)} rows`]: number(reference.regret),
        }),
      );
    }),
  );

  async function act(button, what) {
    button.disabled = true;
    try {
      await what();
      await refresh();
    } catch (error) {
      complain(error);
    } finally {
      button.disabled = false;
    }
  }

  function cancel(job) {
    const button = h("button", { "aria-label": `Cancel refit ${job}` }, "Cancel");
    button.addEventListener("click", () =>
      act(button, () => call(modelPath(id, `/refits/${job}`), { method: "DELETE", signal })),
    );
    return button;
  }

  async function refresh() {
    if (element.hidden) return;
    const { refits } = await call(modelPath(id, "/refits"), { signal });
    list.replaceChildren(
      refits.length
        ? table(
            ["status", right("of seq"), right("visits"), right("gap before"), right("gap"), ""],
            refits.map((one) => [
              one.reason ? `${one.status}: ${one.reason}` : one.status,
              right(count(one.seq)),
              right(count(one.epochs)),
              right(number(one.relative_gap_before)),
              right(number(one.relative_gap)),
              UNDER_WAY.includes(one.status) ? cancel(one.job) : "",
            ]),
            "Refits, the newest first",
          )
        : h("p", { class: "quiet" }, "None was made yet."),
    );
    if (refits.some((one) => UNDER_WAY.includes(one.status)) && !signal.aborted) {
      setTimeout(() => refresh().catch(complain), 500);
    }
  }

  return { element, refresh };
}
