// Router: shows the page that the URL fragment names. Polls /readyz.

import { askForKey, call, hasKey, showError } from "./api.js";
import { showCompare } from "./compare.js";
import { showCreate } from "./create.js";
import { h } from "./dom.js";
import { ago } from "./format.js";
import { watchKeys } from "./keys.js";
import { showModel } from "./model.js";
import { showOverview } from "./overview.js";

const main = document.getElementById("main");
const health = document.getElementById("health");
const keyButton = document.getElementById("key-button");
let leaving = new AbortController();
// The model that is shown: another tab of it is no new page.
let shown = null;

async function show() {
  const [page, id, tab, part] = location.hash.split("/").slice(1).map(decoded);
  for (const link of document.querySelectorAll(".bar nav a")) {
    const isCurrent = link.getAttribute("href") === (page === "new" ? "#/new" : "#/");
    link.toggleAttribute("aria-current", isCurrent);
    if (isCurrent) link.setAttribute("aria-current", "page");
  }
  if (shown?.id === id && page === "models" && shown.select) {
    shown.select(tab, part);
    return;
  }
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  const root = h("div");
  main.replaceChildren(root);
  document.title = page === "models" && id ? `${id} · Dualstream` : "Dualstream";
  const here = (shown = { id: page === "models" ? id : null });
  try {
    if (page === "models" && id) await showModel(root, id, [tab, part], signal, (select) => (here.select = select));
    else if (page === "new") await showCreate(root, signal);
    else if (page === "compare") await showCompare(root, id, tab, signal);
    else if (!page || page === "models") await showOverview(root, signal);
    else root.append(h("h1", {}, "Page not found"), h("p", {}, "The dashboard has no such page. ", h("a", { href: "#/" }, "All models")));
  } catch (error) {
    if (!signal.aborted) root.append(h("p", { class: "error", role: "alert" }, error.message));
  }
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

async function watchHealth() {
  try {
    const { degraded, reason } = await call("readyz");
    health.textContent = degraded ? `${degraded} away` : "server ready";
    dispatchEvent(new CustomEvent("health", { detail: { isStoreAway: Boolean(degraded), storeProblem: reason } }));
    health.className = degraded ? "pill bad" : "pill good";
  } catch (error) {
    health.textContent = error.status ? `not ready: ${error.message}` : "no answer from the server";
    health.className = "pill bad";
  }
}

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the fragment names the page
  main.focus();
});
keyButton.hidden = !hasKey();
keyButton.addEventListener("click", async () => {
  if (await askForKey("Requests of this tab use this key.")) {
    shown = null;
    show();
  }
});
addEventListener("hashchange", () => {
  const before = shown;
  show();
  if (shown !== before) main.focus();
});
addEventListener("unhandledrejection", (event) => {
  showError(event.reason);
  event.preventDefault();
});
watchKeys();
show();
watchHealth();
setInterval(watchHealth, 5000);
setInterval(() => {
  for (const one of document.querySelectorAll("time[data-at]")) one.textContent = ago(Number(one.dataset.at));
}, 5000);
