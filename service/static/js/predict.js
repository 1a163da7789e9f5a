// Card with a form for a prediction, made from the known columns; shows what each feature contributes.

import { Problem, call, modelPath } from "./api.js";
import { bar, breakable, card, copyButton, h, right, table } from "./dom.js";
import { number, percent } from "./format.js";
import { intervalTexts } from "./intervals.js";
import { computedBy, keysOf } from "./past.js";
import { curlOf, exampleOf } from "./snippets.js";

const FIELDS = 12;
const LONG = 30;
const TOP = 3;

export function predictPart(id, spec) {
  let x = exampleOf(spec);
  // Until the user types, the row follows the stream; once there are fields, they stay too.
  let isTyped = false;
  const [keys, isComputed] = [keysOf(spec), computedBy(spec)];
  const declared = Object.entries(spec.columns?.types ?? {}).map(([name, type]) => ({ name, kind: type.kind ?? type, top: [] }));
  // Keys of the history that are no features of their own: the profile does not have them.
  const keysAlone = declared.filter((one) => one.kind === "ignore" && keys.has(one.name)).map((one) => ({ ...one, kind: "key" }));
  let columns = [...keysAlone, ...declared.filter((one) => one.kind !== "ignore")];
  let shown = "";
  const fields = h("div", { class: "predict-fields" });
  const note = h("p", { class: "small quiet" });
  const json = h("textarea", { id: "predict-x", spellcheck: "false", rows: 4, oninput: () => {
    isTyped = true;
    try {
      x = JSON.parse(json.value);
      fillFields();
    } catch {
      // Predict reports what is wrong.
    }
  } });
  const asJson = h("details", {},
    h("summary", {}, "As JSON"),
    h("label", { for: "predict-x" }, "Features, as JSON"),
    json,
    h("p", { class: "small quiet" }, "An object from feature names or indices to numbers, strings or booleans; or a list of numbers."));
  const answer = h("div", { role: "status" }, h("p", { class: "quiet" },
    "Here you see the prediction, and what each feature adds to it. Predictions do not change the model."));
  const form = h("form", { onsubmit: (event) => submit(event), novalidate: true }, fields, note, asJson,
    h("p", { class: "actions" }, h("button", { class: "main" }, "Predict"),
      copyButton("Copy as curl", () => curlOf(id, "predict", { x: read() }))));
  const element = card("Try a prediction", h("div", { class: "grid" }, form, answer));
  element.classList.add("wide");
  show();

  // `found`: the columns of the profile.
  function know(found) {
    if (!found.length || (isTyped && shown)) return;
    const sent = found.filter((one) => one.kind !== "unknown" && !isComputed(one.name));
    columns = [...keysAlone, ...sent.toSorted((a, b) => a.name.localeCompare(b.name, "en", { numeric: true }))];
    // A row as the stream has it: the last values, or usual ones.
    const row = columns.slice(0, FIELDS).map((one) => [one.name, usualOf(one)]).filter(([, value]) => value !== null);
    const kinds = JSON.stringify(columns.map(({ name, kind, count }) => [name, kind, count > 0]));
    if (kinds === shown) return;
    shown = kinds;
    if (!isTyped) x = Object.fromEntries(row);
    show();
  }

  function show() {
    const some = columns.slice(0, FIELDS);
    fields.replaceChildren(...some.map((one, k) => field(one, k)));
    note.textContent = columns.length > FIELDS
      ? `The first ${FIELDS} of ${columns.length} columns have a field; add others to the JSON.`
      : some.length ? "An empty field is left out of the row." : "";
    if (!isTyped) fillJson();
    fillFields();
  }

  function field(one, k) {
    const key = `predict-${k}`;
    const change = (event) => {
      isTyped = true;
      clearMark(event.target);
      const value = valueOf(one, event.target.value);
      x = Array.isArray(x) ? {} : { ...x };
      if (value === undefined) delete x[one.name];
      else x[one.name] = value;
      fillJson();
    };
    const options = one.kind === "category" ? one.top.map((top) => top.value) : [];
    const control = one.kind === "boolean"
      ? h("select", { id: key, onchange: change }, ["", "true", "false"].map((text) => h("option", { value: text }, text || "left out")))
      : h("input", {
          id: key, oninput: change, autocomplete: "off", list: options.length ? `${key}-values` : null,
          inputmode: one.kind === "number" ? "decimal" : null,
          placeholder: placeholderOf(one),
        });
    control.dataset.column = one.name;
    return h("div", {},
      h("label", { for: key }, one.name, h("span", { class: "quiet" }, ` ${one.kind}`)), control,
      options.length ? h("datalist", { id: `${key}-values` }, options.map((value) => h("option", { value }))) : null);
  }

  function fillJson() {
    json.value = JSON.stringify(x, null, 1).replace(/\n */g, " ");
  }

  function fillFields() {
    for (const control of fields.querySelectorAll("[data-column]")) {
      const value = x !== null && Object.hasOwn(x, control.dataset.column) ? x[control.dataset.column] : "";
      control.value = String(value);
    }
  }

  const read = () => JSON.parse(json.value);

  // Marks a field, or the JSON, with what is wrong with it.
  function mark(control, text) {
    control.setAttribute("aria-invalid", "true");
    control.setAttribute("aria-describedby", `${control.id}-error`);
    control.after(h("p", { class: "error small", id: `${control.id}-error` }, text));
  }

  function clearMark(control) {
    control.removeAttribute("aria-invalid");
    element.querySelector(`#${control.id}-error`)?.remove();
  }

  // Marks the fields that a refusal names; returns the refusals of columns that have no field.
  function markAll(refusals) {
    const others = [];
    for (const { pointer, reason } of refusals) {
      const column = columnAt(pointer);
      const control = [...fields.querySelectorAll("[data-column]")].find((one) => one.dataset.column === column);
      if (control) mark(control, reason);
      else others.push(column === null || reason.includes(column) ? reason : `${column}: ${reason}`);
    }
    fields.querySelector("[aria-invalid]")?.focus();
    return others;
  }

  async function submit(event) {
    event.preventDefault();
    element.querySelectorAll("[aria-invalid]").forEach(clearMark);
    try {
      answer.replaceChildren(await explained(id, spec, read()));
    } catch (error) {
      let texts = [error.message];
      if (error instanceof SyntaxError) {
        asJson.open = true;
        texts = [`The features are no JSON: ${error.message}`];
        mark(json, texts[0]);
      } else if (error instanceof Problem && error.errors.length) {
        texts = markAll(error.errors);
        if (!texts.length) texts = ["The server refused the row. The fields that it named are marked."];
      }
      answer.replaceChildren(h("p", { class: "error" }, texts.join("\n")));
    }
  }

  return { element, know };
}

// The value of a field; undefined if it is empty. What is no number is sent as text, and refused with a reason.
function valueOf({ kind }, text) {
  if (text.trim() === "") return undefined;
  if (kind === "boolean") return text === "true";
  return kind === "number" && Number.isFinite(Number(text)) ? Number(text) : text;
}

// The history of a key fades with the time of the row. In minutes, which fit into the field.
const now = () => new Date().toISOString().replace(/:\d+\.\d+/, "");

// A value of a column as the stream has it; null if none is known. The profile keeps no texts and no times.
function usualOf({ kind, last, top, mean, count, missing }) {
  if (kind === "number") return last === null && mean === null ? null : Number((last ?? mean).toPrecision(6));
  // A missing value can be `false`.
  if (kind === "boolean") return count > 0 ? (top.find((one) => one.value === "true")?.count ?? 0) > (count + (missing ?? 0)) / 2 : null;
  if (kind === "time") return now();
  return kind === "text" ? null : last ?? top[0]?.value ?? null;
}

function placeholderOf({ kind, mean }) {
  if (kind === "number") return mean == null ? "" : `mean ${number(mean)}`;
  return { key: "of the history", time: "2024-01-31T09:30:00Z", text: "some words" }[kind] ?? "";
}

// The column that a JSON pointer of a row names; null if it names none.
function columnAt(pointer) {
  const name = /^(?:\/samples\/\d+)?(?:\/x)?\/([^/]*)/.exec(pointer)?.[1];
  return name == null ? null : name.replaceAll("~1", "/").replaceAll("~0", "~");
}

async function explained(id, spec, x) {
  const asked = (query) => call(modelPath(id, `/predict${query}`), { method: "POST", body: { x } });
  let why = null;
  const top = spec.task === "multiclass" ? `top=${TOP}` : "";
  const predicted = await asked(`?explain=true${top && `&${top}`}`).catch((error) => {
    if (!(error instanceof Problem && error.status === 409)) throw error;
    why = error.message;
    return asked(top && `?${top}`);
  });
  const { label, probability, score, seq } = predicted;
  const isNumber = spec.task === "regression";
  const ofClass = predicted.top ? "this class" : "the positive class";
  return h(
    "div",
    { class: "predicted" },
    h("p", { class: "result" }, h("span", { class: "quiet" }, isNumber ? "predicted value " : "predicted label "),
      h("strong", {}, isNumber ? number(score) : String(label))),
    h("p", { class: "small quiet" },
      [probability == null ? null : `probability of ${ofClass} ${percent(probability)}`, isNumber ? null : `score ${number(score)}`,
        ...intervalTexts(spec, predicted), `state at seq ${seq}`].filter(Boolean).join(" · ")),
    predicted.top?.length > 1 ? classTable(predicted.top) : null,
    predicted.explanation ? contributionTable(predicted.explanation, x, computedBy(spec)) : null,
    why && h("p", { class: "small quiet" }, why),
  );
}

function classTable(top) {
  const hasProbability = top[0].probability !== null;
  return table(
    ["class", right("score"), ...(hasProbability ? [right("probability"), ""] : [])],
    top.map(({ label, score, probability }) => [
      h("bdi", {}, String(label)), right(number(score)), ...(hasProbability ? [right(percent(probability)), bar(probability)] : []),
    ]),
    "Most probable classes");
}

function contributionTable({ base, contributions, rest }, x, isComputed) {
  const most = Math.max(...contributions.map((one) => Math.abs(one.contribution)), 1e-300);
  const rows = contributions.map(({ name, index, contribution, value: computed }) => {
    const [feature, value] = isComputed(name ?? "") ? [name, `history: ${number(computed)}`] : featureOf(x, name, index);
    return [h("span", {}, breakable(feature)), value.length > LONG ? `${value.slice(0, LONG)}…` : value, right(number(contribution)), bar(contribution / most)];
  });
  if (rest) rows.push(["all others", "", right(number(rest)), ""]);
  rows.push(["base: no feature", "", right(number(base)), ""]);
  return table(
    ["feature", "value", right("contribution to the score"), ""],
    rows,
    "What each feature adds to the score",
  );
}

// A feature as the user wrote it, and its value: `name=text` is the feature of a string.
function featureOf(x, name, index) {
  const own = (key) => (Object.hasOwn(x, key) ? [String(key), shownValue(x[key])] : null);
  if (name == null) return Array.isArray(x) ? [String(index), shownValue(x[index - 1] ?? 0)] : own(index) ?? [String(index), "0"];
  const text = Object.entries(x).find(([key, value]) => typeof value === "string" && `${key}=${value}` === name);
  return text ?? own(name) ?? [name, "0"];
}

const shownValue = (value) => (typeof value === "number" ? number(value) : String(value));
