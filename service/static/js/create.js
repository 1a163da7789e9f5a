// Form for a new model. The server validates the specification while the user types.

import { Problem, call, explained, modelPath } from "./api.js";
import { columnsForm } from "./columns_form.js";
import { card, h } from "./dom.js";
import { badName, createModel } from "./names.js";

const CHECK_MS = 250;
const SLOW_MS = 400;
const TASKS = {
  binary: ["Two classes", "Will this visitor buy: yes or no?"],
  multiclass: ["Several classes", "Which team gets this ticket?"],
  regression: ["A number", "How much power in ten minutes?"],
};
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
  sgd_l1: "stochastic subgradient with lambda |w|_1: a baseline",
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
  const errors = {};
  const field = (id, label, control, help) => {
    control.id = id;
    errors[id] = h("p", { class: "error", role: "alert", id: `${id}-error` });
    control.setAttribute("aria-describedby", `${id}-error`);
    return h("div", { class: "field" }, h("label", { for: id }, label), control, errors[id],
      help ? h("p", { class: "small quiet" }, help) : null);
  };
  const choice = (options) => h("select", {}, Object.entries(options).map(([value, text]) =>
    h("option", { value }, `${value}: ${text}`)));
  const name = h("input", { autocomplete: "off", spellcheck: "false", oninput: (event) => {
    event.stopPropagation(); // the specification has not changed
    refuseName("");
  } });
  const algorithm = choice(ALGORITHMS);
  const kind = choice({ hashed: "features have names", indexed: "features are numbered from 1 to dim" });
  const dim = h("input", { type: "number", min: 1, value: 10 });
  const rest = h("textarea", { spellcheck: "false", rows: 5 });
  errors.task = h("p", { class: "error", role: "alert" });
  const resolved = h("pre", { tabindex: "0" });
  const create = h("button", { class: "main" }, "Create");
  const progress = h("p", { class: "small quiet", role: "status" });
  const dimField = field("dim", "Number of features", dim);

  // The task follows from the sample until the user chooses one.
  let isChosen = false;
  const radios = Object.entries(TASKS).map(([value, [title, example]]) => {
    const radio = h("input", {
      type: "radio", name: "task", value, checked: value === "binary",
      onchange: () => {
        isChosen = true;
        columns.propose();
      },
    });
    return h("label", { class: "choice" }, radio, h("span", {}, h("strong", {}, title), h("span", { class: "small quiet" }, example)));
  });
  const radio = (value) => radios.map((one) => one.querySelector("input")).find((one) => one.value === value);
  const task = () => root.querySelector("input[name=task]:checked").value;
  const columns = columnsForm({
    task: () => (isChosen ? task() : null),
    proposed: (spec) => { radio(spec.task).checked = true; },
    changed: () => later(),
    signal,
  });
  const advanced = h(
    "details",
    {},
    h("summary", {}, "Advanced"),
    field("algorithm", "Algorithm", algorithm),
    field("kind", "Features", kind),
    dimField,
    field("rest", "More fields, as JSON", rest, 'For example {"loss": "hinge", "window": "sliding"}. These fields override the choices above.'),
  );
  const form = h(
    "form",
    { onsubmit: (event) => submit(event), oninput: () => later(), novalidate: true },
    h("fieldset", {}, h("legend", {}, "What does the model predict?"), h("div", { class: "choices" }, radios), errors.task),
    columns.element,
    field("name", "Name", name, "Letters, digits, dots, dashes and underscores; the first is a letter or a digit."),
    advanced,
    create,
    progress,
  );
  root.append(
    h("h1", {}, "New model"),
    h("div", { class: "grid" }, card("Specification", form), card("Specification with defaults", resolved)),
  );

  function given() {
    dimField.hidden = kind.value !== "indexed";
    const features = kind.value === "indexed" ? { kind: "indexed", dim: Number(dim.value) } : "hashed";
    const { labels, ...own } = columns.given();
    const spec = { algorithm: algorithm.value, task: task(), features, ...own };
    if (labels && spec.task === "binary") spec.labels = labels;
    return { ...spec, ...(rest.value.trim() ? JSON.parse(rest.value) : {}) };
  }

  let checks = 0;
  async function check() {
    const number = ++checks;
    try {
      const found = await call("specs/resolve", { method: "POST", body: given(), signal });
      if (number !== checks) return;
      clear();
      if (found.spec) resolved.textContent = JSON.stringify(found.spec, null, 2);
      for (const one of found.errors) show(one);
      create.disabled = found.spec === null;
    } catch (error) {
      refuse(error);
    }
  }

  // The refusal of a name stays until the name changes.
  function clear() {
    for (const [id, one] of Object.entries(errors)) if (id !== "name") one.textContent = "";
    columns.clearErrors();
  }

  function refuseName(...content) {
    errors.name.replaceChildren(...content);
    name.setAttribute("aria-invalid", String(errors.name.textContent !== ""));
  }

  // An error is next to the field that has its pointer; the rest are fields of the JSON.
  function show({ pointer, reason }) {
    if (columns.showError(pointer, reason)) return;
    const own = { "/task": "task", "/algorithm": "algorithm", "/features": "kind", "/features/dim": "dim" }[pointer];
    const id = own === "dim" && dimField.hidden ? "rest" : own ?? "rest";
    errors[id].append(h("span", {}, `${pointer} ${reason}`), h("br"));
    if (id !== "task") advanced.open = true;
  }

  function refuse(error) {
    if (error.name === "AbortError") return;
    clear();
    if (error instanceof Problem && error.errors.length) error.errors.forEach(show);
    else if (error instanceof SyntaxError) show({ pointer: "", reason: error.message });
    else refuseName(explained(error));
    create.disabled = true;
  }

  let waiting;
  function later() {
    clearTimeout(waiting);
    waiting = setTimeout(check, CHECK_MS);
  }

  async function submit(event) {
    event.preventDefault();
    // A check under way must not change what this shows.
    clearTimeout(waiting);
    checks += 1;
    const bad = badName(name.value);
    if (bad) {
      refuseName(bad);
      name.focus();
      return;
    }
    create.disabled = true;
    const slow = setTimeout(async () => {
      progress.textContent = "The server prepares the model.";
      const { compiling } = await call("readyz?verbose", { signal }).catch(() => ({}));
      // The model may be there by now.
      if (compiling && create.disabled) progress.textContent = "Kernels of this algorithm are compiled first, once. The model is there in some seconds.";
    }, SLOW_MS);
    try {
      const taken = await createModel(name.value, given(), signal);
      if (taken) {
        refuseName(...taken);
        name.focus();
      }
    } catch (error) {
      refuse(error);
    }
    clearTimeout(slow);
    progress.textContent = "";
    create.disabled = false;
  }

  await check();
}
