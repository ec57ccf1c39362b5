// Server-sent events over fetch, which, unlike EventSource, can POST and send a key.

const END = /\r?\n\r?\n/;

/**
 * The data of each event of a body, as it arrives; comments are passed over.
 * @param {ReadableStream<Uint8Array>} body
 * @returns {AsyncGenerator<string>}
 */
export async function* eventData(body) {
  const decoder = new TextDecoder();
  const reader = body.getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      rest += decoder.decode(value, { stream: true });
      const events = rest.split(END);
      rest = events.pop();
      for (const event of events) {
        const data = dataOf(event);
        if (data) yield data;
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // a reader that stops early ends the request
  }
}

function dataOf(event) {
  const lines = event.split(/\r?\n/).filter((line) => line.startsWith("data:"));
  return lines.map((line) => line.slice(5).replace(/^ /, "")).join("\n");
}
