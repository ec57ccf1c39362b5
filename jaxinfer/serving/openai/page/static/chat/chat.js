// A conversation: sends it, streams the answer, stops and regenerates.

import { chatChunks, ServerError } from "../server/api.js";
import { announce, announcePart } from "./announcer.js";
import { Answer } from "./answer.js";
import { hide } from "./alternatives.js";
import { checkSettings, requestFields, systemMessage } from "./settings.js";

const NEAR_END = 80; // pixels: a reader who is this near to the end follows the answer

const log = document.getElementById("log");
const turns = document.getElementById("turns");
const welcome = document.getElementById("welcome");
const send = document.getElementById("send");
const stop = document.getElementById("stop");

/** The conversation on the page, of which there is one. */
export class Chat {
  #turns = []; // {message, element} of the reader, {answer, element} of the model
  #running = null; // the AbortController of the answer that grows

  /** @param {() => string} modelName of requests */
  constructor(modelName) {
    this.modelName = modelName;
  }

  /** Whether an answer grows. */
  get isRunning() {
    return this.#running !== null;
  }

  /**
   * Say something, and have it answered.
   * @param {string} text
   * @returns {boolean} whether it was sent
   */
  say(text) {
    if (this.isRunning || !text.trim() || !checkSettings()) return false;
    this.#push({ message: { role: "user", content: text }, element: bubble(text) });
    this.#answer();
    return true;
  }

  /** End the answer that grows; what has come stays. */
  stop() {
    this.#running?.abort();
  }

  /** Have the last turn answered anew. */
  regenerate() {
    if (this.isRunning || !this.#turns.at(-1)?.answer || !checkSettings()) return;
    this.#turns.pop().element.remove();
    this.#answer();
  }

  /** Forget everything. */
  clear() {
    this.stop();
    this.#turns = [];
    turns.replaceChildren();
    welcome.hidden = false;
    hide();
  }

  #push(turn) {
    welcome.hidden = true;
    this.#turns.push(turn);
    turns.append(turn.element);
    log.scrollTop = log.scrollHeight;
  }

  async #answer() {
    const body = this.#body();
    const running = (this.#running = new AbortController());
    const answer = new Answer(heard, (results) => this.#giveResults(results));
    hide();
    this.#push({ answer, element: answer.element });
    this.#showRunning();
    let fault = "";
    try {
      for await (const chunk of chatChunks(body, running.signal)) following(() => answer.add(chunk));
    } catch (error) {
      if (!running.signal.aborted) fault = faultOf(error);
    }
    following(() => answer.end(fault, running.signal.aborted));
    if (this.#running === running) this.#running = null;
    this.#showRunning();
    announce(fault || (running.signal.aborted ? "Stopped." : "The answer is complete."));
  }

  #giveResults(results) {
    if (this.isRunning) return;
    for (const message of results) {
      this.#push({ message, element: bubble(message.content, "Result of a tool") });
    }
    this.#answer();
  }

  #body() {
    const said = this.#turns.map((turn) => turn.message ?? turn.answer.forMessage());
    const system = systemMessage();
    const messages = [system && { role: "system", content: system }, ...said].filter(Boolean);
    const usage = { include_usage: true, continuous_usage_stats: true };
    return { model: this.modelName(), messages, ...requestFields(), stream_options: usage };
  }

  #showRunning() {
    const hadFocus = document.activeElement;
    send.hidden = this.isRunning;
    stop.hidden = !this.isRunning;
    if (hadFocus === send || hadFocus === stop) document.getElementById("prompt").focus();
  }
}

/** Run what makes the log grow, and stay at its end if that is where the reader is. */
function following(grow) {
  const isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < NEAR_END;
  grow();
  if (isAtEnd) log.scrollTop = log.scrollHeight;
}

function heard(kind, text) {
  if (kind === "content") announcePart(text);
}

function bubble(text, from = "You") {
  const element = document.createElement("li");
  const name = document.createElement("span");
  const body = document.createElement("div");
  element.className = "turn said";
  name.className = "unseen";
  name.textContent = `${from}: `;
  body.className = "text";
  body.textContent = text;
  element.append(name, body);
  return element;
}

function faultOf(error) {
  if (!(error instanceof ServerError)) reportError(error); // a fault of this page
  return error.message;
}
