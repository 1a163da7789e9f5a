// HTTP client of the dashboard. Sends the API key that this tab has stored.

const KEY = "dualstream-key";

// An error answer (problem+json).
export class Problem extends Error {
  constructor(status, body) {
    super(body.detail ?? body.title ?? `the server answered ${status}`);
    this.status = status;
    this.errors = body.errors ?? [];
  }
}

function headersWith(extra) {
  const key = sessionStorage.getItem(KEY);
  return key ? { authorization: `Bearer ${key}`, ...extra } : { ...extra };
}

let pendingKey = null;

// Opens one dialog, even if several requests were refused at once.
function askForKey(wasSent) {
  pendingKey ??= new Promise((resolve) => {
    const dialog = document.getElementById("key-dialog");
    const input = document.getElementById("key-input");
    document.getElementById("key-error").hidden = !wasSent;
    dialog.addEventListener(
      "close",
      () => {
        if (dialog.returnValue === "ok") sessionStorage.setItem(KEY, input.value);
        input.value = "";
        pendingKey = null;
        resolve(dialog.returnValue === "ok");
      },
      { once: true },
    );
    dialog.showModal();
  });
  return pendingKey;
}

// `path` has no leading slash, so that the dashboard also works under a URL prefix.
// A `text` is sent as it is, with its media type in `headers`; a `body` as JSON.
export async function request(path, { method = "GET", body, text, headers, signal } = {}) {
  for (;;) {
    const sent = headersWith(body === undefined ? headers : { "content-type": "application/json", ...headers });
    const answer = await fetch(path, {
      method,
      headers: sent,
      body: body === undefined ? text : JSON.stringify(body),
      signal,
      cache: "no-store",
    });
    if (answer.status === 401 && (await askForKey("authorization" in sent))) continue;
    return answer;
  }
}

export async function call(path, options) {
  const answer = await request(path, options);
  const text = await answer.text();
  const content = text ? parse(text) : {};
  if (!answer.ok) throw new Problem(answer.status, content);
  return content;
}

function parse(text) {
  try {
    return JSON.parse(text);
  } catch {
    return { detail: text };
  }
}

export const modelPath = (id, rest = "") => `models/${encodeURIComponent(id)}${rest}`;

// Shows an error as a notice for 12 seconds; at most four notices at a time.
export function showError(error) {
  if (error?.name === "AbortError") return;
  const notice = document.createElement("p");
  notice.textContent = error.message;
  const notices = document.getElementById("notices");
  notices.append(notice);
  while (notices.children.length > 4) notices.firstChild.remove();
  setTimeout(() => notice.remove(), 12000);
}
