// Names of new models: what is wrong with one, and the request that creates a model without opening another.

import { modelPath, problemOf, request } from "./api.js";
import { h } from "./dom.js";

const NAME = /^[A-Za-z0-9][A-Za-z0-9._-]*$/;
const LONGEST = 128;

// The address of a model's page, of one of its tabs, and of the card there with this title.
export const hrefOf = (id, tab = "", part = null) =>
  `#/models/${encodeURIComponent(id)}${part ? `/${tab || "overview"}/${encodeURIComponent(part)}` : tab && `/${tab}`}`;

// What is wrong with a name; empty if nothing is.
export function badName(name) {
  if (!name) return "Enter a name.";
  if (name.length > LONGEST) return `A name has at most ${LONGEST} characters; this one has ${name.length}.`;
  if (/^[._-]/.test(name)) return `A name begins with a letter or a digit, not with ${name[0]}`;
  const bad = [...name].find((one) => !NAME.test(`a${one}`));
  if (bad === undefined) return "";
  return `A name has letters from A to Z, digits, dots, dashes and underscores only; this one has ${/\s/.test(bad) ? "a space" : bad}`;
}

// Creates a model and opens its page. Returns what to show if the name is taken, otherwise null.
export async function createModel(name, spec, signal) {
  const answer = await request(modelPath(name), { method: "PUT", body: spec, signal });
  if (answer.status === 201) {
    location.hash = hrefOf(name);
    return null;
  }
  // 200: that model has the same specification.
  if (![200, 409].includes(answer.status)) throw await problemOf(answer);
  return [`There is a model ${name}. Choose another name, or `, h("a", { href: hrefOf(name) }, "open that model"), "."];
}
