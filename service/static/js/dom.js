// Creates elements from name, attributes and children. Strings are always inserted as text.

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
  element.append(...children.flat().filter((child) => child != null && child !== false));
  return element;
}

export function table(head, rows, caption) {
  const cell = (kind, value) =>
    value instanceof Node
      ? h(kind, {}, value)
      : h(kind, { class: typeof value === "number" || value?.number ? "number" : null },
          String(value?.text ?? value ?? "–"));
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h(
      "table",
      {},
      h("thead", {}, h("tr", {}, head.map((name) => cell("th", name)))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map((value) => cell("td", value))))),
    ),
  );
}

// A right-aligned table cell with formatted text.
export const right = (text) => ({ text, number: true });

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
