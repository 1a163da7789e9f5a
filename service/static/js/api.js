// The server's own API, with the key of this tab where the server wants one.

const KEY = "dualstream-key";

// What went wrong, as problem+json tells it.
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

let asking = null;

// One dialog, however many requests were refused.
function askForKey() {
  asking ??= new Promise((resolve) => {
    const dialog = document.getElementById("key-dialog");
    const input = document.getElementById("key-input");
    dialog.addEventListener(
      "close",
      () => {
        if (dialog.returnValue === "ok") sessionStorage.setItem(KEY, input.value);
        input.value = "";
        asking = null;
        resolve(dialog.returnValue === "ok");
      },
      { once: true },
    );
    dialog.showModal();
  });
  return asking;
}

// `path` has no leading slash, so that the dashboard works behind a prefix, too.
export async function request(path, { method = "GET", body, headers, signal } = {}) {
  for (;;) {
    const sent = headersWith(body === undefined ? headers : { "content-type": "application/json", ...headers });
    const answer = await fetch(path, {
      method,
      headers: sent,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
      cache: "no-store",
    });
    if (answer.status === 401 && (await askForKey())) continue;
    return answer;
  }
}

export async function call(path, options) {
  const answer = await request(path, options);
  const text = await answer.text();
  const told = text ? parse(text) : {};
  if (!answer.ok) throw new Problem(answer.status, told);
  return told;
}

function parse(text) {
  try {
    return JSON.parse(text);
  } catch {
    return { detail: text };
  }
}

export const modelPath = (id, rest = "") => `models/${encodeURIComponent(id)}${rest}`;

export function complain(error) {
  if (error?.name === "AbortError") return;
  const told = document.createElement("p");
  told.textContent = error.message;
  const notices = document.getElementById("notices");
  notices.append(told);
  while (notices.children.length > 4) notices.firstChild.remove();
  setTimeout(() => told.remove(), 12000);
}
