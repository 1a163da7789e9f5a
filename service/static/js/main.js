// Router: shows the page that the URL fragment names. Polls /readyz.

import { call, showError } from "./api.js";
import { showCreate } from "./create.js";
import { showModel } from "./model.js";
import { showModels } from "./models.js";

const main = document.getElementById("main");
const health = document.getElementById("health");
let leaving = new AbortController();

async function show() {
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  const [, page, id] = location.hash.split("/");
  const root = document.createElement("div");
  main.replaceChildren(root);
  document.title = id ? `${decodeURIComponent(id)} · Dualstream` : "Dualstream";
  try {
    if (page === "models" && id) await showModel(root, decodeURIComponent(id), signal);
    else if (page === "new") await showCreate(root, signal);
    else await showModels(root, signal);
  } catch (error) {
    if (signal.aborted) return;
    const message = document.createElement("p");
    message.className = "error";
    message.textContent = error.message;
    root.append(message);
  }
}

async function watchHealth() {
  try {
    const { degraded } = await call("readyz");
    health.textContent = degraded ? `ready, ${degraded} unavailable` : "ready";
    health.className = degraded ? "bad" : "good";
  } catch (error) {
    health.textContent = error.status ? `not ready: ${error.message}` : "no answer from the server";
    health.className = "bad";
  }
}

addEventListener("hashchange", () => {
  show();
  main.focus();
});
addEventListener("unhandledrejection", (event) => {
  showError(event.reason);
  event.preventDefault();
});
show();
watchHealth();
setInterval(watchHealth, 5000);
