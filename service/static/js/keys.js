// Keys of the dashboard: ? lists them, / goes to the search. Esc closes a dialog, as the browser does it.

import { h } from "./dom.js";

const KEYS = [
  ["?", "Shows these keys."],
  ["/", "Goes to the search of all models."],
  ["Esc", "Closes a dialog, and clears the search."],
  ["← →", "Move between the tabs of a model, if a tab has the focus."],
];

// Whether a key belongs to the element that has the focus.
const isTyping = (element) => element.closest("input, select, textarea, [contenteditable], dialog") !== null;

function showKeys() {
  const close = h("button", { class: "main", autofocus: true }, "Close");
  const dialog = h("dialog", { "aria-labelledby": "keys-title" },
    h("form", { method: "dialog" },
      h("h2", { id: "keys-title" }, "Keys"),
      h("dl", { class: "keys" }, KEYS.map(([key, text]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, text)])),
      h("p", { class: "actions" }, close)));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

// The search is on the page of all models, which may have to be opened first.
function goToSearch() {
  const search = document.getElementById("search");
  if (search) search.focus();
  else {
    const opened = new MutationObserver(() => {
      const found = document.getElementById("search");
      if (!found) return;
      opened.disconnect();
      found.focus();
    });
    opened.observe(document.getElementById("main"), { childList: true, subtree: true });
    location.hash = "#/";
  }
}

const ACTIONS = { "?": showKeys, "/": goToSearch };

export function watchKeys() {
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || isTyping(event.target)) return;
    const action = ACTIONS[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  });
}
