// Server-sent events over fetch, because EventSource cannot send an API key.

import { Problem, modelPath, request } from "./api.js";

const RETRY_MS = 2000;

// Calls `on(kind, data)` for each event until `signal` aborts. Reconnects with Last-Event-ID.
export async function listen(id, signal, on, everyMs = 500) {
  let last = null;
  while (!signal.aborted) {
    try {
      const headers = last === null ? {} : { "last-event-id": last };
      const answer = await request(modelPath(id, `/events?every_ms=${everyMs}`), { headers, signal });
      if (answer.status === 404) return on("deleted", {});
      if (!answer.ok) throw new Problem(answer.status, {});
      on("open", {});
      for await (const event of eventsOf(answer.body)) {
        last = event.id ?? last;
        on(event.kind, event.data);
        if (event.kind === "deleted") return undefined;
      }
    } catch (error) {
      if (signal.aborted) return undefined;
      on("lost", error);
    }
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
  return undefined;
}

async function* eventsOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let buffered = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    buffered += value;
    const blocks = buffered.split("\n\n");
    buffered = blocks.pop();
    for (const block of blocks) {
      const fields = Object.fromEntries(
        block.split("\n").filter((line) => !line.startsWith(":")).map((line) => {
          const colon = line.indexOf(": ");
          return [line.slice(0, colon), line.slice(colon + 2)];
        }),
      );
      if (fields.data) yield { kind: fields.event, id: fields.id, data: JSON.parse(fields.data) };
    }
  }
}
