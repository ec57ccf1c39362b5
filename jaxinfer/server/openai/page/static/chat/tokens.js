// Finds the tokens of an answer's text, whose log-probabilities come beside it.

const LOOK_AHEAD = 8;

/**
 * Texts and tokens differ: special tokens and white space are left out of the text, a character
 * may take several tokens, and a token's text may come in two pieces. So the text decides what is
 * shown, and tokens are matched to it.
 */
export class TokenMatcher {
  #groups = []; // {text, entries}: tokens that are one or more whole characters together
  #open = []; // entries of a character whose last bytes have not come
  #decoder = new TextDecoder();

  /** @param {object[]} entries of a chunk's logprobs.content */
  add(entries) {
    for (const entry of entries) {
      const bytes = Uint8Array.from(entry.bytes ?? new TextEncoder().encode(entry.token));
      const text = this.#decoder.decode(bytes, { stream: true });
      this.#open.push(entry);
      if (!text) continue;
      this.#groups.push({ text, entries: this.#open });
      this.#open = [];
    }
  }

  /**
   * The next part of the answer in pieces; `entries` is null where no token matches.
   * @param {string} text
   * @returns {{text: string, entries: object[] | null}[]}
   */
  match(text) {
    const pieces = [];
    let plain = "";
    while (text) {
      const piece = this.#next(text);
      if (piece) {
        if (plain) pieces.push({ text: plain, entries: null });
        plain = "";
        pieces.push(piece);
        text = text.slice(piece.text.length);
      } else {
        const character = String.fromCodePoint(text.codePointAt(0));
        plain += this.#groups.length ? character : text;
        text = this.#groups.length ? text.slice(character.length) : "";
      }
    }
    if (plain) pieces.push({ text: plain, entries: null });
    return pieces;
  }

  #next(text) {
    const first = this.#groups[0];
    if (first?.text.startsWith(text) && first.text !== text) {
      first.text = first.text.slice(text.length); // the rest comes later
      return { text, entries: first.entries };
    }
    const near = this.#groups.slice(0, LOOK_AHEAD);
    const found = near.findIndex((group) => text.startsWith(group.text));
    if (found < 0) return null;
    return this.#groups.splice(0, found + 1)[found];
  }
}
