// A text of the model on the page: laid out as Markdown or, where the reader asks, as it was written.

import { Markdown } from "./markdown/markdown.js";
import { nodeOf } from "./markdown/passage.js";

/** Fills an element with a text that grows. */
export class Formatted {
  #element;
  #pieces = [];
  #markdown;

  /** @param {HTMLElement} element */
  constructor(element) {
    this.#element = element;
    this.#markdown = new Markdown(element);
  }

  /** @param {import("./markdown/passage.js").Piece[]} pieces that come next */
  add(pieces) {
    for (const piece of pieces) this.#pieces.push(piece);
    this.#markdown.add(pieces);
  }

  /** Nothing else comes. */
  end() {
    this.#markdown.end();
  }

  /** Move all of it to the end of another text. */
  moveTo(other) {
    other.add(this.#pieces);
    this.#pieces = [];
    this.#element.replaceChildren();
    this.#markdown = new Markdown(this.#element);
  }

  /** As the model wrote it. */
  get text() {
    return this.#pieces.map(({ text }) => text).join("");
  }

  /** @param {boolean} isSource whether marks are shown; all of the text must have come */
  show(isSource) {
    this.#element.replaceChildren();
    if (isSource) this.#element.append(...this.#pieces.map(nodeOf));
    else {
      this.#markdown = new Markdown(this.#element);
      this.#markdown.add(this.#pieces);
      this.#markdown.end();
    }
  }
}
