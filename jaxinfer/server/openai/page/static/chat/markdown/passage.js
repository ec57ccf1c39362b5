// A stretch of an answer's text with its tokens, any part of which can be shown.

import { tokenElement } from "../alternatives.js";

/**
 * A piece is {text, entries}: log-probabilities of the tokens that its text belongs to, or null.
 * @typedef {{text: string, entries: object[] | null}} Piece
 */

/** Pieces one after another, found by their place in the text. */
export class Passage {
  text = "";
  #pieces = [];
  #ends = []; // of each piece, in the text

  /** @param {Piece} piece */
  add({ text, entries }) {
    if (!text) return;
    this.text += text;
    this.#pieces.push({ text, entries });
    this.#ends.push(this.text.length);
  }

  /**
   * @param {number} start
   * @param {number} end
   * @returns {Piece[]} of a part of the text
   */
  pieces(start = 0, end = this.text.length) {
    const found = [];
    for (let index = this.#pieceAt(start); index < this.#pieces.length; index++) {
      const { text, entries } = this.#pieces[index];
      const begin = this.#ends[index] - text.length;
      if (begin >= end) break;
      found.push({ text: text.slice(Math.max(start - begin, 0), end - begin), entries });
    }
    return found;
  }

  /** A part of the text as nodes of the page. */
  nodes(start, end) {
    return this.pieces(start, end).map(nodeOf);
  }

  #pieceAt(place) {
    let [low, high] = [0, this.#ends.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.#ends[middle] > place) high = middle;
      else low = middle + 1;
    }
    return low;
  }
}

/** @param {Piece} piece */
export function nodeOf({ text, entries }) {
  return entries ? tokenElement(text, entries) : document.createTextNode(text);
}
