// Card of a model's versions: save one, roll back to one.

import { call, showError, modelPath } from "./api.js";
import { card, h, right, table } from "./dom.js";
import { count, time } from "./format.js";

export function versionsCard(id, signal, changed) {
  const name = h("input", { id: "version-name", placeholder: "seq-…", maxlength: 64 });
  const take = h("button", {}, "Save version");
  const list = h("div");
  const form = h(
    "form",
    {
      class: "row",
      onsubmit: async (event) => {
        event.preventDefault();
        await act(take, () => call(modelPath(id, "/versions"), { method: "POST", body: name.value ? { name: name.value } : {} }));
        name.value = "";
      },
    },
    h("label", { for: "version-name" }, "Name ", name),
    take,
  );
  const element = card("Versions", form, list);

  async function act(button, what) {
    button.disabled = true;
    try {
      await what();
      await changed();
    } catch (error) {
      showError(error);
    } finally {
      button.disabled = false;
    }
  }

  function rollBack(version) {
    const button = h("button", { "aria-label": `Roll back to ${version.name}` }, "Roll back");
    button.addEventListener("click", () => {
      if (!confirm(`Roll back to ${version.name}, at seq ${version.seq}? Rows learned since are undone.`)) return;
      act(button, () =>
        call(modelPath(id, "/rollback"), {
          method: "POST",
          body: { version: version.name },
          headers: { "idempotency-key": keyOf() },
        }),
      );
    });
    return button;
  }

  async function refresh() {
    const { versions } = await call(modelPath(id, "/versions"), { signal });
    list.replaceChildren(
      versions.length
        ? table(
            ["name", { text: "seq", number: true }, "created", ""],
            versions.map((one) => [one.name, right(count(one.seq)), time(one.created), rollBack(one)]),
            "Versions",
          )
        : h("p", { class: "quiet" }, "No versions yet."),
    );
  }

  return { element, refresh };
}

// crypto.randomUUID exists on secure origins only.
function keyOf() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
