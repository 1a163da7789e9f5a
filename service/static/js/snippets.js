// Commands that a user can copy: the first rows of a new model, and a prediction.

import { hasKey, modelPath } from "./api.js";
import { card, choice, copyButton, h } from "./dom.js";
import { keysOf } from "./past.js";

const VALUES = { number: 3.5, boolean: true, category: "a", text: "some words", time: "2024-01-31T09:30:00Z", ignore: "a" };
const COLUMNS = 6;
const DIM = 5;

// A row of a model's features, by its specification.
export function exampleOf(spec) {
  const { columns, features } = spec;
  if (columns) {
    const keys = keysOf(spec);
    const kinds = Object.entries(columns.types).map(([name, type]) => [name, type.kind ?? type]);
    const some = kinds.filter(([name, kind]) => kind !== "ignore" || keys.has(name)).slice(0, COLUMNS);
    return Object.fromEntries(some.length ? some.map(([name, kind]) => [name, VALUES[kind]]) : [["age", 39], ["city", "Oslo"]]);
  }
  if (features.kind === "hashed") return { age: 39, city: "Oslo" };
  return Object.fromEntries(Array.from({ length: Math.min(features.dim, DIM) }, (_, k) => [String(k + 1), (k + 1) / 2]));
}

function labelOf({ task, labels }) {
  if (task === "regression") return 12.5;
  if (task === "multiclass") return "red";
  return labels ? labels[1] : 1;
}

const server = () => new URL(".", location.href).href.replace(/\/$/, "");
const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

// A curl command that sends `body` as JSON.
export function curlOf(id, action, body) {
  const key = hasKey() ? ` \\\n  -H "Authorization: Bearer $DUALSTREAM_API_KEY"` : "";
  return `curl -s ${server()}/${modelPath(id, `/${action}`)}${key} \\\n  --json ${quoted(JSON.stringify(body))}`;
}

function learnCurl(id, spec) {
  const [x, y] = [exampleOf(spec), labelOf(spec)];
  return curlOf(id, "learn", spec.columns?.label ? [{ ...x, [spec.columns.label]: y }] : { x, y });
}

// A Python literal of JSON values.
function literal(value) {
  if (value === true) return "True";
  if (value === false) return "False";
  if (value === null) return "None";
  if (typeof value !== "object") return JSON.stringify(value);
  return `{${Object.entries(value).map(([key, one]) => `${JSON.stringify(key)}: ${literal(one)}`).join(", ")}}`;
}

function learnPython(id, spec) {
  const [x, y] = [exampleOf(spec), labelOf(spec)];
  const [name, row] = [JSON.stringify(id), literal(x)];
  const learned = spec.columns?.label ? `[${literal({ ...x, [spec.columns.label]: y })}]` : `${row}, ${literal(y)}`;
  return [
    "from dualstream.client import Client  # pip install dualstream",
    "",
    `client = Client("${server()}")${hasKey() ? "  # the key: DUALSTREAM_API_KEY in the environment" : ""}`,
    `client.learn(${name}, ${learned})`,
    `print(client.predict(${name}, ${row}))`,
  ].join("\n");
}

// What to do with a model that has no rows.
export function firstSteps(id, spec) {
  const texts = { curl: learnCurl(id, spec), python: learnPython(id, spec) };
  const code = h("pre", { tabindex: "0", id: "snippet", "aria-label": "Command" }, texts.curl);
  const which = choice("Language", { curl: "curl", python: "Python" }, "curl", (chosen) => (code.textContent = texts[chosen]));
  const element = card("Send the first rows",
    h("p", { class: "quiet" }, "The model is ready. It predicts from its first row on, and this page shows its error as soon as rows come."),
    which, code, copyButton("Copy", () => code.textContent));
  element.classList.add("first-steps");
  return element;
}
