// Creates elements from name, attributes and children. Strings are always inserted as text.

import { explained, showError } from "./api.js";
import { ago, time } from "./format.js";

export function h(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  return filled(element, attributes, children);
}

export function svg(name, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  return filled(element, attributes, children);
}

function filled(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value === true) element.setAttribute(key, "");
    else if (value !== false && value != null) element.setAttribute(key, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child != null && child !== false));
  return element;
}

export function table(head, rows, caption) {
  const cell = (kind, value) => {
    const content = value?.content ?? value ?? "–";
    return h(kind, { class: value?.isNumber ? "number" : null }, content instanceof Node || Array.isArray(content) ? content : String(content));
  };
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h(
      "table",
      {},
      h("thead", {}, h("tr", {}, head.map((name) => cell(name === "" ? "td" : "th", name)))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map((value) => cell("td", value))))),
    ),
  );
}

// A right-aligned table cell.
export const right = (content) => ({ content, isNumber: true });

// A name that breaks after its signs, and not in the middle of a word.
export const breakable = (name) => String(name).split(/(?<=[^\p{L}\p{N}])(?=[\p{L}\p{N}])/u).flatMap((part, k) => (k ? [h("wbr"), part] : [part]));

// Time since a moment, in seconds since 1970; main.js keeps it current.
export const since = (at) =>
  at == null ? "–" : h("time", { "data-at": at, datetime: new Date(1000 * at).toISOString(), title: time(1000 * at) }, ago(at));

export function facts(pairs) {
  const shown = Object.entries(pairs).filter(([, value]) => value != null);
  return h(
    "dl",
    { class: "facts" },
    shown.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))),
  );
}

export function card(title, ...children) {
  return h("section", { class: "card", "aria-label": title }, h("h2", {}, title), ...children);
}

// A number with its meaning above and an explanation below. `meter` is a share from 0 to 1.
export function tile(name) {
  const [value, note] = [h("dd", { class: "value" }, "–"), h("dd", { class: "note" })];
  const meter = h("meter", { min: 0, max: 1, high: 0.9, hidden: true, "aria-label": name });
  const element = h("div", { class: "tile" }, h("dt", {}, name), value, note, h("dd", { class: "gauge" }, meter));
  return {
    element,
    set(text, explanation, { kind = "", filled: part = null } = {}) {
      value.textContent = text;
      note.textContent = explanation;
      note.className = `note ${kind}`;
      meter.hidden = part === null;
      meter.value = part ?? 0;
    },
  };
}

// A small bar from the middle to the right (positive) or left; `part` from -1 to 1.
export function bar(part) {
  const width = Math.min(Math.abs(part), 1) * 50;
  return svg(
    "svg",
    { class: "weight-bar", viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("rect", { class: part < 0 ? "minus" : "plus", x: part < 0 ? 50 - width : 50, y: 1, width, height: 8 }),
  );
}

// Buttons of which one is pressed. `options`: from value to text.
export function choice(label, options, value, chosen) {
  const buttons = Object.entries(options).map(([one, text]) =>
    h("button", { type: "button", "aria-pressed": String(one === value), onclick: (event) => {
      for (const other of buttons) other.setAttribute("aria-pressed", String(other === event.target));
      chosen(one);
    } }, text));
  return h("div", { class: "choice-buttons", role: "group", "aria-label": label }, buttons);
}

// Asks before a change. Resolves to whether the user confirmed it.
export const confirmed = (title, text, action) => asked(title, h("p", {}, text), action);

// A dialog with `action` and Cancel. `submitted` runs the action; the dialog stays open while it returns a text
// or elements that say what is wrong. Resolves to true if the action was done.
export function asked(title, content, action, submitted = () => null) {
  const error = h("p", { class: "error", role: "alert" });
  const button = h("button", { class: "main" }, action);
  let isDone = false;
  const dialog = h(
    "dialog",
    { "aria-labelledby": "confirm-title" },
    h("form", { novalidate: true, onsubmit: async (event) => {
      event.preventDefault();
      button.disabled = true;
      try {
        const wrong = await submitted();
        error.replaceChildren(...[wrong ?? []].flat());
        isDone = !wrong;
      } catch (failure) {
        error.textContent = explained(failure);
      }
      button.disabled = false;
      if (isDone) dialog.close();
    } },
      h("h2", { id: "confirm-title" }, title),
      content, error,
      h("p", { class: "actions" }, button,
        h("button", { type: "button", autofocus: true, onclick: () => dialog.close() }, "Cancel"))),
  );
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(isDone);
    });
  });
}

// Runs an action of a button, which is disabled until then; shows its error.
export async function act(button, action) {
  button.disabled = true;
  try {
    await action();
  } catch (error) {
    showError(error);
  } finally {
    button.disabled = false;
  }
}

// A button that copies `text()`.
export function copyButton(label, text) {
  const said = h("span", { role: "status", class: "small quiet" });
  const button = h("button", { type: "button", onclick: async () => {
    said.textContent = (await copied(text())) ? "Copied." : "The browser refused; select the text and copy it.";
    setTimeout(() => (said.textContent = ""), 4000);
  } }, label);
  return h("span", { class: "copy" }, button, said);
}

// The clipboard exists on secure origins only; elsewhere a selection is copied.
async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = h("textarea", { "aria-hidden": "true", class: "offscreen" });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}
