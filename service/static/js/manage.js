// Buttons that delete a model, and that create another one with its specification.

import { call, modelPath, showNotice } from "./api.js";
import { compareHref } from "./compare.js";
import { asked, h } from "./dom.js";
import { plural } from "./format.js";
import { badName, createModel } from "./names.js";

// `rows()` is the number of learned rows.
export function manageButtons(id, spec, rows, signal) {
  return h("p", { class: "actions manage" },
    h("a", { class: "button", href: compareHref(id) }, "Compare"),
    h("button", { type: "button", onclick: () => duplicate(id, spec, signal) }, "Duplicate"),
    h("button", { type: "button", class: "danger", onclick: () => remove(id, rows()) }, "Delete"));
}

// `rows`: the number of learned rows, or nothing if it is not known.
export async function remove(id, rows) {
  const text = `The store loses ${rows == null ? "all rows" : `the ${plural(rows, "row")}`} that ${id} has learned, its versions and its journal. This cannot be undone.`;
  const isDone = await asked(`Delete ${id}?`, h("p", {}, text), "Delete", async () => {
    await call(modelPath(id), { method: "DELETE" });
  });
  if (!isDone) return;
  location.hash = "#/";
  showNotice(`${id} was deleted.`, "good");
}

// The name of a copy that is not too long.
const copyOf = (id) => `${id.slice(0, 123)}-copy`;

function duplicate(id, spec, signal) {
  const name = h("input", { id: "copy-name", value: copyOf(id), autocomplete: "off", spellcheck: "false" });
  const content = [
    h("p", {}, `The new model has the specification of ${id}. Rows, weights and versions are not copied: it begins without any.`),
    h("div", { class: "field" }, h("label", { for: "copy-name" }, "Name of the new model"), name),
  ];
  const isDone = asked(`Duplicate ${id}`, content, "Create", () => badName(name.value) || createModel(name.value, spec, signal));
  name.select();
  return isDone;
}
