// Form for a new model. The server validates the specification while the user types.

import { Problem, call, modelPath } from "./api.js";
import { card, h } from "./dom.js";

const CHECK_MS = 250;
const TASKS = { binary: "two classes", multiclass: "several classes", regression: "a number" };
const ALGORITHMS = {
  portfolio: "no tuning: several learners, weighted by their losses",
  dual_ascent: "O-DCA: dual steps, windows, a certificate",
  dc: "ODCA: ramp-like losses, for noisy labels",
  rda: "regularized dual averaging: sparse weights",
  rda_plus: "RDA+: sparse weights, faster to the right features",
  sgd: "stochastic gradient",
  spg: "stochastic proximal steps",
  truncated_gradient: "truncated gradient: sparse weights",
  fobos: "FOBOS: sparse weights",
  asset: "ASSET: kernels by random features",
  ogd: "online gradient descent",
  perceptron: "perceptron",
  passive_aggressive: "passive-aggressive",
  romma: "ROMMA",
  alma: "ALMA",
  boosted: "boosted trees over the last rows: not linear",
  net: "neural network of two layers: not linear",
  neighbours: "nearest of the last rows: not linear",
  splines: "a curve of each column: not linear",
  semiparametric: "named functions and a kernel, for regression",
};

export async function showCreate(root, signal) {
  const field = (id, label, control, help) => {
    control.id = id;
    return h("div", { class: "field" }, h("label", { for: id }, label), control,
      help ? h("p", { class: "small quiet" }, help) : null);
  };
  const choice = (options) => h("select", {}, Object.entries(options).map(([value, text]) =>
    h("option", { value }, `${value}: ${text}`)));
  const name = h("input", { required: true, maxlength: 128, pattern: "[A-Za-z0-9][A-Za-z0-9._\\-]{0,127}", autocomplete: "off" });
  const task = choice(TASKS);
  const algorithm = choice(ALGORITHMS);
  const kind = choice({ hashed: "features have names", indexed: "features are numbered from 1 to dim" });
  const dim = h("input", { type: "number", min: 1, value: 10 });
  const rest = h("textarea", { spellcheck: "false", rows: 5 });
  const errors = h("p", { class: "error", role: "alert" });
  const resolved = h("pre", { tabindex: "0" });
  const create = h("button", { class: "main" }, "Create");
  const dimField = field("dim", "Number of features", dim);
  const form = h(
    "form",
    { onsubmit: (event) => submit(event), oninput: () => later() },
    field("name", "Name", name, "Letters, digits, dots, dashes and underscores."),
    field("task", "Task", task),
    field("algorithm", "Algorithm", algorithm),
    field("kind", "Features", kind),
    dimField,
    field("rest", "More fields, as JSON", rest, 'For example {"loss": "hinge", "window": "sliding"}. These fields override the choices above.'),
    errors,
    create,
  );
  root.append(
    h("h1", {}, "New model"),
    h("div", { class: "grid" }, card("Specification", form), card("Specification with defaults", resolved)),
  );

  function given() {
    dimField.hidden = kind.value !== "indexed";
    const features = kind.value === "indexed" ? { kind: "indexed", dim: Number(dim.value) } : "hashed";
    const spec = { algorithm: algorithm.value, task: task.value, features };
    return { ...spec, ...(rest.value.trim() ? JSON.parse(rest.value) : {}) };
  }

  async function check() {
    try {
      const found = await call("specs/resolve", { method: "POST", body: given(), signal });
      if (found.spec) resolved.textContent = JSON.stringify(found.spec, null, 2);
      errors.textContent = found.errors.map((one) => `${one.pointer} ${one.reason}`).join("\n");
      create.disabled = found.spec === null;
    } catch (error) {
      refuse(error);
    }
  }

  function refuse(error) {
    if (error.name === "AbortError") return;
    const text = error instanceof Problem && error.errors.length
      ? error.errors.map((one) => `${one.pointer} ${one.reason}`).join("\n")
      : error.message;
    errors.textContent = text;
    create.disabled = true;
  }

  let waiting;
  function later() {
    clearTimeout(waiting);
    waiting = setTimeout(check, CHECK_MS);
  }

  async function submit(event) {
    event.preventDefault();
    try {
      await call(modelPath(name.value), { method: "PUT", body: given(), signal });
      location.hash = `#/models/${encodeURIComponent(name.value)}`;
    } catch (error) {
      refuse(error);
      create.disabled = false;
    }
  }

  await check();
}
