// Splits an answer's text at <think> and </think>, which may come in pieces.

const OPEN = "<think>";
const CLOSE = "</think>";

/**
 * Feed it an answer's text as it comes; it gives back parts of kind "thinking" or "content". The
 * part "fold" says that all content so far was thinking: a template may have written <think>.
 */
export class ThinkingSplitter {
  #state = "start";
  #held = "";
  #trims = true; // white space beside the tags is not shown
  #mayClose = true;

  /** The server has split the text: what comes is content. */
  trustServer() {
    if (this.#state === "start") this.#state = "content";
    this.#mayClose = false;
  }

  /**
   * @param {string} text
   * @returns {{kind: "thinking" | "content" | "fold", text: string}[]}
   */
  feed(text) {
    this.#held += text;
    const parts = [];
    if (this.#state === "start" && !this.#begin()) return parts;
    if (this.#state === "thinking" || this.#mayClose) this.#untilClose(parts);
    if (this.#state === "content" && !this.#mayClose) this.#emit(parts, this.#held.length);
    return parts;
  }

  /** What was held back, now that nothing else comes. */
  end() {
    const parts = [];
    if (this.#state === "start") this.#state = "content";
    this.#emit(parts, this.#held.length);
    return parts;
  }

  #begin() {
    const text = this.#held.trimStart();
    if (text.length < OPEN.length && OPEN.startsWith(text)) return false;
    this.#state = text.startsWith(OPEN) ? "thinking" : "content";
    if (this.#state === "thinking") this.#held = text.slice(OPEN.length);
    return true;
  }

  #untilClose(parts) {
    const found = this.#held.indexOf(CLOSE);
    if (found < 0) {
      this.#emit(parts, this.#held.length - endThatMayBe(this.#held, CLOSE));
      return;
    }
    this.#emit(parts, found);
    if (this.#state === "content") parts.push({ kind: "fold", text: "" });
    this.#held = this.#held.slice(CLOSE.length);
    this.#state = "content";
    this.#mayClose = false;
    this.#trims = true;
  }

  #emit(parts, length) {
    let text = this.#held.slice(0, length);
    this.#held = this.#held.slice(length);
    if (this.#trims) text = text.trimStart();
    if (!text) return;
    this.#trims = false;
    parts.push({ kind: this.#state, text });
  }
}

/** How many characters at the end of a text may be the beginning of a tag. */
function endThatMayBe(text, tag) {
  for (let length = Math.min(tag.length - 1, text.length); length > 0; length--) {
    if (tag.startsWith(text.slice(-length))) return length;
  }
  return 0;
}
