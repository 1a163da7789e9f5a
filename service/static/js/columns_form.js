// Part of the form for a new model: a sample of rows, and the type of each of its columns.

import { call } from "./api.js";
import { h, right, table } from "./dom.js";
import { plural } from "./format.js";

const WAIT_MS = 500;
const CHOSEN = "chosen";
const MAX_CHARACTERS = 512 * 1024;
const KINDS = ["number", "boolean", "category", "text", "time", "ignore", "id", "weight"];

// Media type of pasted rows: JSON, JSON lines, or CSV with the sign that its header has most often.
function mediaTypeOf(text) {
  const first = text.trimStart()[0];
  if (first === "[") return "application/json";
  if (first === "{") return "application/x-ndjson";
  const header = text.trimStart().split("\n", 1)[0];
  const count = (sign) => header.split(sign).length - 1;
  const best = [",", ";", "\t"].reduce((one, other) => (count(other) > count(one) ? other : one));
  return best === "," ? "text/csv" : `text/csv; delimiter=${encodeURIComponent(best)}`;
}

const kindOf = (type) => type.kind ?? type;

// `task()` is the task that the user chose, or null; `proposed(spec)` gets each new proposal and
// `changed()` each change. `columns` is null without a sample. With the checkbox the specification has
// the groups of `history` that the server proposes, and the types that it gives to their keys.
export function columnsForm({ task, proposed, changed, signal }) {
  let columns = null;
  let proposal = null;
  let waiting;
  let asked = 0;
  let unread = "";

  const takesHistory = h("input", { type: "checkbox", id: "history", onchange: () => propose(label.value, true) });
  const historyError = h("p", { class: "error", role: "alert", id: "history-error" });
  const error = h("p", { class: "error", role: "alert", id: "sample-error" });
  const sample = h("textarea", {
    id: "sample", rows: 7, spellcheck: "false", "aria-describedby": "sample-help sample-error",
    placeholder: "at,zip,price,bought\n2024-05-01T09:00,02134,3.5,yes",
    oninput: (event) => {
      event.stopPropagation();
      clearTimeout(waiting);
      waiting = setTimeout(propose, WAIT_MS);
    },
  });
  const label = h("select", { id: "label", onchange: () => propose(label.value) });
  const labelField = h("div", { class: "field", hidden: true }, h("label", { for: "label" }, "Label"), label,
    h("p", { class: "small quiet" }, "The column that the model predicts."));
  const found = h("div", { role: "status" });
  const element = h(
    "div",
    {},
    h("div", { class: "field" },
      h("label", { for: "sample" }, "Sample of your rows"),
      sample,
      error,
      h("p", { class: "small quiet", id: "sample-help" },
        "Paste the first lines of a CSV file with its header, or of JSON lines; 20 rows or more give a good proposal. The sample is not learned. Leave it empty for rows of the form {\"x\": ..., \"y\": ...}.")),
    labelField,
    found,
  );

  // `keepsTypes`: the rows are the same, so the types that the user chose stay.
  async function propose(chosen = null, keepsTypes = false) {
    const number = ++asked;
    const text = sample.value.length > MAX_CHARACTERS
      ? sample.value.slice(0, sample.value.lastIndexOf("\n", MAX_CHARACTERS))
      : sample.value;
    refuse((unread = ""));
    if (!text.trim()) {
      [columns, proposal] = [null, null];
      show();
      changed();
      return;
    }
    const query = new URLSearchParams();
    if (chosen) query.set("label", chosen);
    if (task()) query.set("task", task());
    if (takesHistory.checked) query.set("history", "true");
    try {
      const answer = await call(`columns/infer?${query}`, {
        method: "POST", text, headers: { "content-type": mediaTypeOf(text) }, signal,
      });
      if (number !== asked) return;
      const before = keepsTypes ? (columns ?? []).filter((one) => one.reason === CHOSEN) : [];
      proposal = answer;
      columns = answer.columns.map((one) => {
        const kept = before.find((other) => other.name === one.name);
        return kept ? { ...one, kind: kept.kind, reason: CHOSEN } : { ...one, kind: kindOf(one.type) };
      });
      proposed(answer.spec);
      show();
      if (keepsTypes) takesHistory.focus();
    } catch (failure) {
      if (failure.name === "AbortError" || number !== asked) return;
      refuse((unread = failure.message));
      // Another label may fit: the choice of the label stays.
      if (columns === null) show();
    }
    changed();
  }

  function refuse(text) {
    error.textContent = text;
    sample.setAttribute("aria-invalid", String(text !== ""));
  }

  function show() {
    labelField.hidden = columns === null;
    if (columns === null) {
      found.replaceChildren();
      return;
    }
    const named = columns.find((one) => one.kind === "label").name;
    label.replaceChildren(...columns.map(({ name }) => h("option", { value: name, selected: name === named }, name)));
    const rows = columns.map((one) => [
      h("div", {}, one.name, h("div", { class: "small quiet" }, one.reason), one.error = h("p", { class: "error", role: "alert" })),
      one.kind === "label" ? "label" : kindChoice(one),
      right(one.missing ? String(one.missing) : ""),
    ]);
    found.replaceChildren(
      h("p", {}, `${plural(proposal.rows, "row")}, ${plural(columns.length, "column")}.`),
      ...proposal.warnings.map((text) => h("p", { class: "small" }, `Warning: ${text}`)),
      table(["column", "type", right("missing")], rows, "Columns of the sample"),
      proposal.history.length || takesHistory.checked ? historyChoice() : "",
    );
  }

  function historyChoice() {
    return h("div", { class: "field" },
      h("label", { class: "choice", for: "history" }, takesHistory,
        h("span", {}, h("strong", {}, "History"),
          h("span", { class: "small quiet" }, "Columns from the earlier rows of a key: how often, how different, how long since."))),
      historyError,
      proposal.history.map(({ group, reason }) => h("p", { class: "small" },
        h("strong", {}, h("bdi", {}, group.by)), ` ${group.stats.join(", ")}; half-lives ${group.half_life.join(", ")}`,
        h("span", { class: "quiet" }, ` – ${reason}`))));
  }

  // The groups that the user takes.
  const groups = () => (takesHistory.checked ? proposal.history.map((one) => one.group) : []);

  function kindChoice(one) {
    return h(
      "select",
      {
        "aria-label": `Type of ${one.name}`,
        onchange: (event) => {
          // At most one column is the id, and one the weight.
          for (const other of columns) {
            if (other !== one && other.kind === event.target.value && ["id", "weight"].includes(other.kind)) {
              other.kind = "ignore";
            }
          }
          one.kind = event.target.value;
          one.reason = CHOSEN;
          show();
          document.querySelector(`[aria-label="${CSS.escape(`Type of ${one.name}`)}"]`)?.focus();
          changed();
        },
      },
      KINDS.map((kind) => h("option", { value: kind, selected: kind === one.kind }, kind)),
    );
  }

  // The fields `columns`, `labels` and `history` of the specification.
  function given() {
    if (columns === null) return {};
    const role = (kind) => columns.find((one) => one.kind === kind)?.name ?? null;
    const typed = columns.filter((one) => !["label", "id", "weight"].includes(one.kind));
    const keys = new Set(groups().map((group) => group.by));
    // A key is declared, and `ignore` reads a name that ends with * as a pattern.
    const ignored = typed.filter((one) => one.kind === "ignore" && !keys.has(one.name) && !one.name.endsWith("*"));
    const types = typed.filter((one) => !ignored.includes(one)).map((one) =>
      [one.name, one.kind === kindOf(one.type) ? one.type : one.kind]);
    const { labels, columns: { missing } } = proposal.spec;
    return {
      ...(labels ? { labels } : {}),
      ...(groups().length ? { history: groups() } : {}),
      columns: {
        label: role("label"), id: role("id"), weight: role("weight"),
        ignore: ignored.map((one) => one.name), types: Object.fromEntries(types), missing,
      },
    };
  }

  // Shows an error of the specification next to its column; returns whether there is one.
  function showError(pointer, reason) {
    const name = /^\/columns\/types\/([^/]*)/.exec(pointer)?.[1]?.replaceAll("~1", "/").replaceAll("~0", "~");
    const one = name == null ? null : columns?.find((column) => column.name === name);
    if (one?.error) one.error.textContent = reason;
    else if (columns !== null && pointer.startsWith("/history")) historyError.append(h("span", {}, `${pointer} ${reason}`), h("br"));
    else if (columns !== null && /^\/(columns|labels)/.test(pointer)) refuse(`${pointer} ${reason}`);
    else return false;
    return true;
  }

  function clearErrors() {
    refuse(unread);
    historyError.textContent = "";
    for (const one of columns ?? []) one.error.textContent = "";
  }

  return { element, given, showError, clearErrors, propose };
}
