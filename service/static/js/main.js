// Which page is shown, by the part of the address after #.

import { call, complain } from "./api.js";
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
    const told = document.createElement("p");
    told.className = "error";
    told.textContent = error.message;
    root.append(told);
  }
}

async function watchHealth() {
  try {
    const told = await call("readyz");
    health.textContent = told.degraded ? `ready, without its ${told.degraded}` : "ready";
    health.className = told.degraded ? "bad" : "good";
  } catch (error) {
    health.textContent = error.status ? `not ready: ${error.message}` : "the server does not answer";
    health.className = "bad";
  }
}

addEventListener("hashchange", () => {
  show();
  main.focus();
});
addEventListener("unhandledrejection", (event) => {
  complain(event.reason);
  event.preventDefault();
});
show();
watchHealth();
setInterval(watchHealth, 5000);
