// HTTP client of the dashboard. Sends the API key that this tab has stored, and asks for it.

const KEY = "dualstream-key";
const element = (id) => document.getElementById(id);

// An error answer (problem+json).
export class Problem extends Error {
  constructor(status, body) {
    super(body.detail ?? body.title ?? `the server answered ${status}`);
    this.status = status;
    this.type = body.type;
    this.errors = body.errors ?? [];
  }
}

// No answer: the server is away, or the network is.
class NoAnswer extends Error {
  constructor() {
    super("The server does not answer. It may be stopped or restarting; this page goes on when it is back.");
  }
}

// fetch, and the reading of a body, reject with a TypeError if the connection fails.
async function reached(promise) {
  try {
    return await promise;
  } catch (error) {
    throw error instanceof TypeError ? new NoAnswer() : error;
  }
}

export const hasKey = () => sessionStorage.getItem(KEY) !== null;

function headersWith(extra) {
  const key = sessionStorage.getItem(KEY);
  return key ? { authorization: `Bearer ${key}`, ...extra } : { ...extra };
}

let pendingKey = null;
// After Cancel nothing asks again, except the button.
let isDeclined = false;

// Opens one dialog, even if several requests were refused at once. Resolves to whether a key was given.
export function askForKey(reason, error = "") {
  pendingKey ??= new Promise((resolve) => {
    const [dialog, input, form] = [element("key-dialog"), element("key-input"), element("key-form")];
    let given = null;
    const refuse = (text) => {
      element("key-error").textContent = text;
      input.setAttribute("aria-invalid", String(text !== ""));
    };
    element("key-reason").textContent = reason;
    refuse(error);
    form.onsubmit = (event) => {
      event.preventDefault();
      const key = input.value.trim();
      // A header has no other characters; fetch would fail with an error about headers.
      if (!key) refuse("Enter a key.");
      else if (!/^[!-~]+$/.test(key)) refuse("A key has only ASCII letters, digits and signs, without spaces. Copy it again.");
      else dialog.close((given = key));
    };
    element("key-cancel").onclick = () => dialog.close();
    dialog.addEventListener("close", () => {
      if (given !== null) sessionStorage.setItem(KEY, given);
      element("key-button").hidden = false;
      input.value = "";
      pendingKey = null;
      isDeclined = given === null;
      resolve(given !== null);
    }, { once: true });
    dialog.showModal();
  });
  return pendingKey;
}

// `path` has no leading slash, so that the dashboard also works under a URL prefix.
// A `text` is sent as it is, with its media type in `headers`; a `body` as JSON.
export async function request(path, { method = "GET", body, text, headers, signal } = {}) {
  for (;;) {
    const sent = headersWith(body === undefined ? headers : { "content-type": "application/json", ...headers });
    const answer = await reached(fetch(path, {
      method,
      headers: sent,
      body: body === undefined ? text : JSON.stringify(body),
      signal,
      cache: "no-store",
    }));
    if (answer.status !== 401 || isDeclined) return answer;
    const wasSent = "authorization" in sent;
    const isGiven = await askForKey("This server requires a key.",
      wasSent ? "The server refused this key: it is wrong, or it was removed. Check it, or use another one." : "");
    if (!isGiven) return answer;
  }
}

export async function call(path, options) {
  const answer = await request(path, options);
  if (!answer.ok) throw await problemOf(answer);
  return contentOf(answer);
}

// The error that an answer reports.
export const problemOf = async (answer) => new Problem(answer.status, await contentOf(answer));

async function contentOf(answer) {
  const text = await reached(answer.text());
  return text ? parse(text) : {};
}

function parse(text) {
  try {
    return JSON.parse(text);
  } catch {
    return { detail: text };
  }
}

export const modelPath = (id, rest = "") => `models/${encodeURIComponent(id)}${rest}`;

// Shows an error as a notice.
export function showError(error) {
  if (error?.name === "AbortError") return;
  showNotice(explained(error), "bad");
}

// The message of an error, with what helps.
export const explained = (error) =>
  error.status === 403 ? `${error.message}. The button “API key” at the top changes the key.` : error.message;

// Shows a text for 12 seconds; at most four at a time.
export function showNotice(text, kind = "") {
  const notices = element("notices");
  const notice = document.createElement("p");
  notice.className = kind;
  notice.textContent = text;
  // Requests are repeated, and so are their errors.
  if ([...notices.children].some((one) => one.textContent === notice.textContent)) return;
  notices.append(notice);
  while (notices.children.length > 4) notices.firstChild.remove();
  setTimeout(() => notice.remove(), 12000);
}
