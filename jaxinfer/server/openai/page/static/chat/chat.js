// A conversation: sends it, streams the answer, stops, regenerates, and goes on from an edit.

import { chatChunks, ServerError } from "../server/api.js";
import { announce, announcePart } from "./announcer.js";
import { Answer } from "./answer.js";
import { hide } from "./alternatives.js";
import { Bubble } from "./bubble.js";
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
  #ended = Promise.resolve(); // once that answer has

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
    this.#pushSaid(text);
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

  /** What the model wrote in a turn, given its element. */
  textOf(element) {
    return this.#turns.find((turn) => turn.element === element)?.answer?.text ?? "";
  }

  /** Forget everything. */
  clear() {
    this.stop();
    this.#turns = [];
    turns.replaceChildren();
    welcome.hidden = false;
    hide();
  }

  /**
   * Say something else at a turn of the reader; what came after it is forgotten.
   * @returns {Promise<boolean>} whether it was sent
   */
  async #sayInstead(turn, text) {
    if (!text.trim() || !checkSettings()) return false;
    this.stop();
    await this.#ended;
    const place = this.#turns.indexOf(turn);
    if (place < 0 || this.isRunning) return false;
    for (const { element } of this.#turns.splice(place)) element.remove();
    this.#pushSaid(text);
    this.#answer();
    return true;
  }

  #pushSaid(text) {
    const turn = { message: { role: "user", content: text } };
    turn.element = new Bubble(text, { onEdit: (edited) => this.#sayInstead(turn, edited) }).element;
    this.#push(turn);
  }

  #push(turn) {
    welcome.hidden = true;
    this.#turns.push(turn);
    turns.append(turn.element);
    log.scrollTop = log.scrollHeight;
  }

  #answer() {
    this.#ended = this.#stream();
  }

  async #stream() {
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
      const { element } = new Bubble(message.content, { from: "Result of a tool" });
      this.#push({ message, element });
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

function faultOf(error) {
  if (!(error instanceof ServerError)) reportError(error); // a fault of this page
  return error.message;
}
