// Try a prediction, and see what each feature did: the score less the score without it, which for a
// linear model is weight times value.

import { Problem, call, modelPath } from "./api.js";
import { bar } from "./contents.js";
import { card, facts, h, right, table } from "./dom.js";
import { number, percent } from "./format.js";

const MOST_FEATURES = 200;

export function predictCard(id, spec, signal) {
  const isHashed = spec.features.kind === "hashed";
  const example = isHashed ? '{"age": 39, "city": "Oslo"}' : '{"1": 0.5, "2": 1}';
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
      h("p", { class: "small quiet" }, "An object of names (or places) to numbers, texts or true and false; or a list of numbers."),
    ),
    h("button", { class: "main" }, "Predict"),
  );

  // Until one writes into it, features that the model knows stand there.
  suggested(id, isHashed, signal).then((x) => {
    if (x !== null && input.value === example) input.value = JSON.stringify(x, null, 1).replace(/\n */g, " ");
  }, () => {});

  async function submit(event) {
    event.preventDefault();
    try {
      const x = JSON.parse(input.value);
      answer.replaceChildren(await explained(id, x, signal));
    } catch (error) {
      const told = error instanceof Problem && error.errors.length
        ? error.errors.map((one) => `${one.pointer} ${one.reason}`).join("\n")
        : error.message;
      answer.replaceChildren(h("p", { class: "error" }, told));
    }
  }

  return card("Try a prediction", form, answer);
}

const SUGGESTED = 4;

// A text is the feature `name=text` of value 1.
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
  const features = featuresOf(x);
  const asked = features.slice(0, MOST_FEATURES);
  const samples = [{ x }, ...asked.map(([name]) => ({ x: without(x, name) }))];
  const told = await call(modelPath(id, "/predict"), { method: "POST", body: { samples }, signal });
  const best = Array.isArray(told.scores[0]) ? indexOfMost(told.scores[0]) : null;
  const score = (row) => (best === null ? told.scores[row] : told.scores[row][best]);
  const whole = score(0);
  const parts = asked
    .map(([name, value], k) => ({ name, value, part: whole - score(k + 1) }))
    .sort((a, b) => Math.abs(b.part) - Math.abs(a.part));
  const most = Math.max(...parts.map((one) => Math.abs(one.part)), 1e-300);
  const probability = Array.isArray(told.probabilities?.[0]) ? told.probabilities[0][best] : told.probabilities?.[0];
  return h(
    "div",
    {},
    facts({
      label: told.labels ? String(told.labels[0]) : null,
      score: number(whole),
      probability: probability == null ? null : percent(probability),
      seq: told.seq,
    }),
    parts.length
      ? table(
          ["feature", "value", { text: "contribution", number: true }, ""],
          parts.map((one) => [one.name, shown(one.value), right(number(one.part)), bar(one.part / most)]),
          "What each feature adds to the score",
        )
      : null,
    features.length > MOST_FEATURES
      ? h("p", { class: "small quiet" }, `Of the first ${MOST_FEATURES} features.`)
      : null,
  );
}

const shown = (value) => (typeof value === "number" ? number(value) : String(value));

const featuresOf = (x) =>
  Array.isArray(x)
    ? x.map((value, k) => [String(k + 1), value]).filter(([, value]) => value !== 0)
    : Object.entries(x);

function without(x, name) {
  if (Array.isArray(x)) return x.map((value, k) => (k + 1 === Number(name) ? 0 : value));
  return Object.fromEntries(Object.entries(x).filter(([key]) => key !== name));
}

const indexOfMost = (values) => values.indexOf(Math.max(...values));
