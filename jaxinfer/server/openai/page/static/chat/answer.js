// One answer on the page: thinking folded, text in tokens, calls of tools, a line of statistics.

import { useAlternatives } from "./alternatives.js";
import { Formatted } from "./formatted.js";
import { Statistics } from "./statistics.js";
import { ThinkingSplitter } from "./thinking.js";
import { TokenMatcher } from "./tokens.js";
import { ToolCalls } from "./tool-calls.js";

/** Text of the server only ever enters the page as text nodes. */
export class Answer {
  #splitter = new ThinkingSplitter();
  #matcher = new TokenMatcher();
  #statistics = new Statistics();
  #began = performance.now();

  /**
   * @param {(kind: string, text: string) => void} onText hears each part that is shown
   * @param {(results: object[]) => void} onResults takes messages with results of tools
   */
  constructor(onText, onResults) {
    this.onText = onText;
    this.element = document.getElementById("answer-template").content.firstElementChild.cloneNode(true);
    this.thinking = this.#part("thinking");
    this.content = new Formatted(this.#part("content"));
    this.thoughts = new Formatted(this.#part("thoughts"));
    this.calls = new ToolCalls(onResults);
    this.#part("calls").replaceWith(this.calls.element);
    useAlternatives(this.#part("thoughts"));
    useAlternatives(this.#part("content"));
    this.#part("source").addEventListener("click", () => this.#toggleSource());
  }

  /** A chunk of the stream. */
  add(chunk) {
    const choice = chunk.choices[0];
    const delta = choice?.delta ?? {};
    const reasoning = delta.reasoning_content ?? delta.reasoning ?? "";
    this.#statistics.note(chunk.usage, Boolean(reasoning || delta.content || delta.tool_calls));
    this.#matcher.add(choice?.logprobs?.content ?? []);
    if (reasoning) {
      this.#splitter.trustServer();
      this.#show([{ kind: "thinking", text: reasoning }]);
    }
    if (delta.content) this.#show(this.#splitter.feed(delta.content));
    if (delta.tool_calls) this.calls.add(delta.tool_calls);
    this.#statistics.reason = choice?.finish_reason ?? this.#statistics.reason;
    this.#showStatistics();
  }

  /**
   * Nothing else comes.
   * @param {string} fault why it ended early; "" if it did not
   * @param {boolean} isStopped by the reader
   */
  end(fault, isStopped) {
    this.#show(this.#splitter.end());
    this.#endThinking();
    this.content.end();
    if (!fault && !isStopped) this.calls.end();
    if (isStopped) this.#statistics.reason = "stopped";
    if (fault) this.#part("fault").textContent = fault;
    this.element.classList.remove("growing");
    this.#part("buttons").hidden = false;
    this.#part("copy").hidden = !this.text || !navigator.clipboard;
    this.#part("source").hidden = !this.text && !this.thoughts.text;
    this.#showStatistics();
  }

  /** The answer as it was written, without its thinking. */
  get text() {
    return this.content.text;
  }

  /** The answer as a message of the conversation; null where there is nothing to send. */
  forMessage() {
    const calls = this.calls.forMessage();
    if (!this.text && !calls.length) return null;
    const message = { role: "assistant", content: this.text };
    return calls.length ? { ...message, tool_calls: calls } : message;
  }

  #part(name) {
    return this.element.querySelector(`[data-part=${name}]`);
  }

  #show(parts) {
    for (const { kind, text } of parts) {
      if (kind === "fold") this.#fold();
      else this.#append(kind, text);
    }
  }

  #append(kind, text) {
    if (kind === "thinking") this.thinking.hidden = false;
    else this.#endThinking();
    const target = kind === "thinking" ? this.thoughts : this.content;
    target.add(this.#matcher.match(text));
    this.onText(kind, text);
  }

  #fold() {
    this.content.moveTo(this.thoughts);
    this.thinking.hidden = false;
    this.#endThinking();
  }

  #toggleSource() {
    const button = this.#part("source");
    const isSource = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(isSource));
    this.content.show(isSource);
    this.thoughts.show(isSource);
  }

  #endThinking() {
    if (this.thinking.hidden || this.thinking.dataset.ended) return;
    this.thinking.dataset.ended = "yes";
    this.thoughts.end();
    const seconds = (performance.now() - this.#began) / 1000;
    this.#part("thinking-title").textContent = `Thought for ${seconds.toFixed(1)} s`;
  }

  #showStatistics() {
    this.#part("statistics").textContent = this.#statistics.parts().join(" · ");
  }
}
