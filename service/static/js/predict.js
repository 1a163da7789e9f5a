// Form for a prediction. Shows each feature's contribution: the score minus the score without the
// feature, which is weight times value in a linear model.

import { Problem, call, modelPath } from "./api.js";
import { bar } from "./contents.js";
import { card, facts, h, right, table } from "./dom.js";
import { number, percent } from "./format.js";

const MAX_FEATURES = 200;

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
      h("p", { class: "small quiet" }, "An object from feature names or indices to numbers, strings or booleans; or a list of numbers."),
    ),
    h("button", { class: "main" }, "Predict"),
  );

  // Until the user types, the input has known features of the model.
  suggested(id, isHashed, signal).then((x) => {
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
  const features = featuresOf(x);
  const asked = features.slice(0, MAX_FEATURES);
  const samples = [{ x }, ...asked.map(([name]) => ({ x: without(x, name) }))];
  const predicted = await call(modelPath(id, "/predict"), { method: "POST", body: { samples }, signal });
  if (predicted.scores[0] == null) {
    const errors = (predicted.errors ?? []).filter((one) => one.index === 0);
    throw new Problem(422, { detail: "the server refused this row", errors });
  }
  const best = Array.isArray(predicted.scores[0]) ? indexOfMax(predicted.scores[0]) : null;
  const score = (row) => (best === null ? predicted.scores[row] : predicted.scores[row][best]);
  const whole = score(0);
  const parts = asked
    .map(([name, value], k) => ({ name, value, without: score(k + 1) }))
    .filter((one) => one.without != null)
    .map(({ name, value, without: rest }) => ({ name, value, part: whole - rest }))
    .sort((a, b) => Math.abs(b.part) - Math.abs(a.part));
  const most = Math.max(...parts.map((one) => Math.abs(one.part)), 1e-300);
  const probability = Array.isArray(predicted.probabilities?.[0]) ? predicted.probabilities[0][best] : predicted.probabilities?.[0];
  return h(
    "div",
    {},
    facts({
      label: predicted.labels ? String(predicted.labels[0]) : null,
      score: number(whole),
      probability: probability == null ? null : percent(probability),
      seq: predicted.seq,
    }),
    parts.length
      ? table(
          ["feature", "value", { text: "contribution", number: true }, ""],
          parts.map((one) => [one.name, shown(one.value), right(number(one.part)), bar(one.part / most)]),
          "What each feature adds to the score",
        )
      : null,
    features.length > MAX_FEATURES
      ? h("p", { class: "small quiet" }, `Only the first ${MAX_FEATURES} features are shown.`)
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

const indexOfMax = (values) => values.indexOf(Math.max(...values));
