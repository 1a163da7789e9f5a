// Card of a model's refits, and of the distance from the optimum of its window.

import { call, showError, modelPath } from "./api.js";
import { act, card, facts, h, right, table } from "./dom.js";
import { count, number, plural } from "./format.js";

const UNDER_WAY = ["waiting", "running", "entering"];

export function refitsCard(id, spec, signal) {
  const begin = h("button", {}, "Refit now");
  const compare = h("button", {}, "Compare with the optimum");
  const optimum = h("div", { role: "status" });
  const list = h("div");
  const element = card("Refits", h("p", { class: "row" }, begin, compare), optimum, list);
  element.hidden = !["dual_ascent", "semiparametric"].includes(spec.algorithm);
  // Refits of semiparametric models report the gap themselves.
  compare.hidden = spec.algorithm === "semiparametric";

  begin.addEventListener("click", () =>
    run(begin, () => call(modelPath(id, "/refit"), { method: "POST", body: {}, signal })),
  );
  compare.addEventListener("click", () =>
    run(compare, async () => {
      const { reference } = await call(modelPath(id, "/certificate?reference=true"), { signal });
      optimum.replaceChildren(
        facts({
          served: number(reference.served),
          "lower bound": number(reference.lower_bound),
          gap: number(reference.gap),
          [`regret over ${plural(reference.regret_rows, "row")}`]: number(reference.regret),
        }),
      );
    }),
  );

  const run = (button, what) => act(button, async () => {
    await what();
    await refresh();
  });

  function cancel(job) {
    const button = h("button", { "aria-label": `Cancel refit ${job}` }, "Cancel");
    button.addEventListener("click", () =>
      run(button, () => call(modelPath(id, `/refits/${job}`), { method: "DELETE", signal })),
    );
    return button;
  }

  async function refresh() {
    if (element.hidden) return;
    const { refits } = await call(modelPath(id, "/refits"), { signal });
    list.replaceChildren(
      refits.length
        ? table(
            ["status", right("at seq"), right("visits"), right("gap before"), right("gap"), ""],
            refits.map((one) => [
              one.reason ? `${one.status}: ${one.reason}` : one.status,
              right(count(one.seq)),
              right(count(one.epochs)),
              right(number(one.relative_gap_before)),
              right(number(one.relative_gap)),
              UNDER_WAY.includes(one.status) ? cancel(one.job) : "",
            ]),
            "Refits, newest first",
          )
        : h("p", { class: "quiet" }, "No refits yet."),
    );
    if (refits.some((one) => UNDER_WAY.includes(one.status)) && !signal.aborted) {
      setTimeout(() => refresh().catch(showError), 500);
    }
  }

  return { element, refresh };
}
