// Form for a prediction. Shows what each feature contributes to the score.

import { Problem, call, modelPath } from "./api.js";
import { bar } from "./contents.js";
import { card, facts, h, right, table } from "./dom.js";
import { number, percent } from "./format.js";

export function predictCard(id, spec, signal) {
  const isHashed = spec.features.kind === "hashed";
  const example = spec.columns ? exampleOf(spec.columns) : isHashed ? '{"age": 39, "city": "Oslo"}' : '{"1": 0.5, "2": 1}';
  const input = h("textarea", { id: "predict-x", spellcheck: "false", rows: 4 });
  input.value = example;
  const answer = h("div", { role: "status" });
  const form = h(
    "form",
    { onsubmit: (event) => submit(event) },
    h(
      "div",
      { class: "field" },
      h("label", { for: "predict-x" }, "Features, as JSON"),
      input,
      h("p", { class: "small quiet" }, "An object from feature names or indices to numbers, strings or booleans; or a list of numbers."),
    ),
    h("button", { class: "main" }, "Predict"),
  );

  // Until the user types, the input has known features of the model.
  if (!spec.columns) suggested(id, isHashed, signal).then((x) => {
    if (x !== null && input.value === example) input.value = JSON.stringify(x, null, 1).replace(/\n */g, " ");
  }, () => {});

  async function submit(event) {
    event.preventDefault();
    try {
      const x = JSON.parse(input.value);
      answer.replaceChildren(await explained(id, x, signal));
    } catch (error) {
      const text = error instanceof Problem && error.errors.length
        ? error.errors.map((one) => `${one.pointer} ${one.reason}`).join("\n")
        : error.message;
      answer.replaceChildren(h("p", { class: "error" }, text));
    }
  }

  return card("Try a prediction", form, answer);
}

const SUGGESTED = 4;
const VALUES = { number: 1, boolean: true, category: "a", text: "some words", time: "2024-01-31T09:30:00Z" };

// A row of the declared columns.
function exampleOf({ types }) {
  const kinds = Object.entries(types).map(([name, type]) => [name, type.kind ?? type]);
  const some = kinds.filter(([, kind]) => kind !== "ignore").slice(0, 6);
  const row = some.map(([name, kind]) => [name, VALUES[kind]]);
  return JSON.stringify(Object.fromEntries(row.length ? row : [["age", 39], ["city", "Oslo"]]), null, 1).replace(/\n */g, " ");
}

// A string value is the feature `name=text` with value 1.
async function suggested(id, isHashed, signal) {
  const { weights } = await call(modelPath(id, `/weights?top=${SUGGESTED}`), { signal });
  const names = weights.map((one) => (isHashed ? one.name : String(one.index)));
  const pairs = names.filter((name) => name != null).map((name) => {
    const [, feature, text] = (isHashed && /^([^=]+)=(.*)$/s.exec(name)) || [null, name, 1];
    return [feature, text];
  });
  return pairs.length ? Object.fromEntries(pairs) : null;
}

async function explained(id, x, signal) {
  const asked = (query) => call(modelPath(id, `/predict${query}`), { method: "POST", body: { x }, signal });
  let why = null;
  const predicted = await asked("?explain=true").catch((error) => {
    if (!(error instanceof Problem && error.status === 409)) throw error;
    why = error.message;
    return asked("");
  });
  return h(
    "div",
    {},
    facts({
      label: predicted.label == null ? null : String(predicted.label),
      score: number(predicted.score),
      probability: predicted.probability == null ? null : percent(predicted.probability),
      seq: predicted.seq,
    }),
    predicted.explanation ? contributionTable(predicted.explanation, x) : null,
    why && h("p", { class: "small quiet" }, why),
  );
}

function contributionTable({ base, contributions, rest }, x) {
  const most = Math.max(...contributions.map((one) => Math.abs(one.contribution)), 1e-300);
  const rows = contributions.map(({ name, index, contribution }) => [
    ...featureOf(x, name, index),
    right(number(contribution)),
    bar(contribution / most),
  ]);
  if (rest) rows.push(["all others", "", right(number(rest)), ""]);
  rows.push(["base: no feature", "", right(number(base)), ""]);
  return table(
    ["feature", "value", { text: "contribution", number: true }, ""],
    rows,
    "What each feature adds to the score",
  );
}

// A feature as the user wrote it, and its value: `name=text` is the feature of a string.
function featureOf(x, name, index) {
  const own = (key) => (Object.hasOwn(x, key) ? [String(key), shown(x[key])] : null);
  if (name == null) return Array.isArray(x) ? [String(index), shown(x[index - 1] ?? 0)] : own(index) ?? [String(index), "0"];
  const text = Object.entries(x).find(([key, value]) => typeof value === "string" && `${key}=${value}` === name);
  return text ?? own(name) ?? [name, "0"];
}

const shown = (value) => (typeof value === "number" ? number(value) : String(value));
