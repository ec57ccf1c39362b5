// Requests to the server that sent this page, with the key where it asks for one.

import { eventData } from "./events.js";
import { askForKey, currentKey } from "./key.js";

/** What the server said to a request that it did not run. */
export class ServerError extends Error {}

/** The reader was asked for a key and gave none. */
export class KeyRefusedError extends ServerError {}

/**
 * A chat's chunks as they arrive.
 * @param {object} body of POST /v1/chat/completions
 * @param {AbortSignal} signal ends the request
 * @returns {AsyncGenerator<object>}
 * @throws {ServerError} the server refused it, or an error came in the middle
 */
export async function* chatChunks(body, signal) {
  const response = await send("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...body, stream: true }),
    signal,
  });
  try {
    for await (const data of eventData(response.body)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ServerError(chunk.error.message);
      yield chunk;
    }
  } catch (error) {
    if (!(error instanceof TypeError)) throw error;
    throw new ServerError("The connection broke before the answer ended.");
  }
  throw new ServerError("The server closed the connection before the answer ended.");
}

/** The served models: objects with id and max_model_len. */
export async function listModels() {
  return (await (await send("v1/models")).json()).data;
}

// Paths are relative, so that a proxy may serve everything below a prefix.
async function send(path, options = {}) {
  for (;;) {
    const key = currentKey();
    const headers = { ...options.headers, ...(key && { Authorization: `Bearer ${key}` }) };
    const response = await reach(path, { ...options, headers, cache: "no-store" });
    if (response.ok) return response;
    if (response.status !== 401) throw new ServerError(await messageOf(response));
    if (!(await askForKey(key))) throw new KeyRefusedError("This server asks for an API key.");
  }
}

async function reach(path, options) {
  try {
    return await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("The server can't be reached. Is it still running?");
  }
}

async function messageOf(response) {
  const text = await response.text();
  try {
    return JSON.parse(text).error.message;
  } catch {
    return `The server answered ${response.status}.`; // a proxy's page, not the server's error
  }
}
