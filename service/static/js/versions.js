// Tab of a model's versions: save one, roll back to one; and what was changed when.

import { call, modelPath } from "./api.js";
import { compareHref } from "./compare.js";
import { act, card, confirmed, h, right, since, table } from "./dom.js";
import { count, plural, time } from "./format.js";

export function versionsPart(id, signal, changed) {
  const name = h("input", { id: "version-name", placeholder: "seq-…", maxlength: 64 });
  const take = h("button", { class: "main" }, "Save version");
  const list = h("div");
  const changes = h("div");
  const form = h(
    "form",
    {
      class: "row",
      onsubmit: (event) => {
        event.preventDefault();
        act(take, async () => {
          await call(modelPath(id, "/versions"), { method: "POST", body: name.value ? { name: name.value } : {} });
          name.value = "";
          await changed();
        });
      },
    },
    h("div", {}, h("label", { for: "version-name" }, "Name"), name),
    take,
  );
  const element = h("div", { class: "grid" },
    card("Versions", h("p", { class: "small quiet" }, "A version is a copy of the model under a name, to which you can go back."), form, list),
    card("Changes", h("p", { class: "small quiet" }, "Who changed the model is in the audit log of the server."), changes));
  // Rows learned at a version, by its name.
  let rowsOf = new Map();

  function rollBack(version) {
    const button = h("button", { "aria-label": `Roll back to ${version.name}` }, "Roll back");
    button.addEventListener("click", async () => {
      const rows = rowsOf.has(version.name) ? `, at ${plural(rowsOf.get(version.name), "row")} learned` : "";
      const text = `${id} goes back to version ${version.name} of ${time(version.created)}${rows}. The weights, metrics and members `
        + "since then are undone. To undo the rollback, roll back to the seq before it while the journal has it.";
      if (!(await confirmed(`Roll back to ${version.name}?`, text, "Roll back"))) return;
      act(button, async () => {
        await call(modelPath(id, "/rollback"), {
          method: "POST",
          body: { version: version.name },
          headers: { "idempotency-key": keyOf() },
        });
        await changed();
      });
    });
    return button;
  }

  async function refresh() {
    const { versions } = await call(modelPath(id, "/versions"), { signal });
    list.replaceChildren(
      versions.length
        ? table(
            ["name", right("rows learned"), right("seq"), right("saved"), ""],
            versions.toReversed().map((one) => [
              one.name, right(count(rowsOf.get(one.name))), right(count(one.seq)), right(since(Date.parse(one.created) / 1000)),
              h("span", { class: "actions" }, h("a", { href: compareHref(`${id}@${one.name}`, id) }, "Compare with now"), rollBack(one)),
            ]),
            "Versions, newest first",
          )
        : h("p", { class: "quiet" }, "No versions yet."),
    );
  }

  // `events`: those of history.js.
  function showChanges(events) {
    rowsOf = new Map(events.filter((one) => one.version).map((one) => [one.version, one.rows]));
    const found = events.filter((one) => one.kind !== "drift" && one.kind !== "guard");
    changes.replaceChildren(
      found.length
        ? table(
            ["change", right("at rows"), right("seq"), right("when")],
            found.toReversed().map((one) => [one.text, right(count(one.rows)), right(count(one.seq)), right(since(one.time))]),
            "Changes, newest first",
          )
        : h("p", { class: "quiet" }, "No changes yet."),
    );
  }

  return { element, refresh, showChanges };
}

// crypto.randomUUID exists on secure origins only.
function keyOf() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
