// Emphasis, code and links within a paragraph that grows; what is settled is not laid out anew.

import { Passage } from "./passage.js";

const REACH = 1000; // a mark's other end is looked for within so many characters
const ADDRESS = /^(?:https?:\/\/|mailto:)/i;
const MARK = /[`*_~[<\\]|!\[|\$\$|https?:\/\//gi;
const CUT_MARK = /(?:!|\$|h(?:t(?:t(?:p(?:s?(?::\/?)?)?)?)?)?)$/i; // may become one of the long marks
const TARGET =
  /\(\s*(?:<([^<>\n]*)>|((?:[^\s()<>]|\((?:[^\s()]|\([^\s()]*\))*\))+))(?:\s+(?:"([^"]*)"|'([^']*)'))?\s*\)/y;
const BARE = /https?:\/\/[^\s<>"`|，。；：！？、（）「」【】]*/iy;
const MATH = { "\\(": "\\)", "\\[": "\\]", $$: "$$" };
const WORD = /[\p{L}\p{N}]/u;
const SPACE = /^\s?$/u; // or no character at all
const PUNCTUATION = /[\p{P}\p{S}]/u;

/** Fills an element with the nodes of a text, as more of it comes. */
export class Inlines {
  #element;
  #isCell;
  #before = ""; // the character ahead of the tail
  #tail = new Passage(); // what may still change
  #settled = 0; // children of the element that will not

  /**
   * @param {HTMLElement} element
   * @param {{isCell?: boolean}} options whether it is a table's cell, where code holds \| for |
   */
  constructor(element, { isCell = false } = {}) {
    this.#element = element;
    this.#isCell = isCell;
  }

  /** @param {import("./passage.js").Piece} piece that comes next */
  add(piece) {
    this.#tail.add(piece);
  }

  /**
   * Lay out what has come.
   * @param {boolean} isWhole whether nothing else comes
   */
  lay(isWhole) {
    const scan = new Scan(this.#tail, this.#before, { isWhole, isCell: this.#isCell });
    const items = scan.items();
    const count = isWhole ? items.length : items.findIndex((item) => item.end > scan.pending);
    const kept = count < 0 ? items.length : count;
    while (this.#element.childNodes.length > this.#settled) this.#element.lastChild.remove();
    for (const [index, item] of items.entries()) {
      this.#element.append(...scan.nodesOf(item));
      if (index + 1 === kept) this.#settled = this.#element.childNodes.length;
    }
    if (kept) this.#settle(items[kept - 1].end);
  }

  #settle(end) {
    const { text } = this.#tail;
    const rest = this.#tail.pieces(end);
    this.#before = text[end - 1];
    this.#tail = new Passage();
    for (const piece of rest) this.#tail.add(piece);
  }
}

/**
 * One pass over a part of a text. It makes items {start, end, node?}, where no node means the text
 * itself, and notes in `pending` where the first mark stands that more text may give a meaning.
 */
class Scan {
  pending = Infinity;
  #items = [];
  #openers = []; // runs of * _ ~ that may begin an emphasis: {item, sign, count, length}
  #without = new Set(); // marks that are known to have no other end

  constructor(passage, before, { start = 0, end = passage.text.length, ...options }) {
    this.passage = passage;
    this.text = passage.text;
    this.before = before;
    this.start = start;
    this.end = end;
    this.options = options;
  }

  items() {
    let at = this.start;
    while (at < this.end) {
      MARK.lastIndex = at;
      const mark = MARK.exec(this.text);
      const next = mark && mark.index < this.end ? mark.index : this.end;
      this.#push(at, next);
      at = next < this.end ? this.#mark(next, mark[0]) : next;
    }
    this.#notePending();
    return this.#items;
  }

  nodesOf({ start, end, node }) {
    return node ? [node] : this.passage.nodes(start, end);
  }

  /** Take what stands at a mark. Returns where it ends. */
  #mark(at, mark) {
    if ("*_~".includes(mark)) return this.#run(at, mark);
    const found = this.#found(at, mark);
    const end = found?.end ?? at + mark.length;
    this.#push(at, end, found?.node);
    return end;
  }

  #found(at, mark) {
    if (mark === "`") return this.#code(at);
    if (mark === "[" || mark === "![") return this.#link(at, mark);
    if (mark === "<") return this.#angled(at);
    if (mark === "\\" || mark === "$$") return this.#math(at) ?? this.#escape(at);
    return this.#bare(at);
  }

  #push(start, end, node) {
    if (end > start) this.#items.push({ start, end, node });
  }

  // Emphasis: a run of signs closes the nearest run that it can, and may open one itself.

  #run(at, sign) {
    let end = at;
    while (end < this.end && this.text[end] === sign) end++;
    if (end === this.text.length) this.#waitIfCut(at);
    const { opens, closes } = this.#sides(at, end, sign);
    const run = { sign, count: end - at, length: end - at, both: opens && closes };
    if (closes) at = this.#close(at, end, run);
    if (at === end) return end;
    this.#push(at, end);
    if (opens) this.#openers.push({ ...run, count: end - at, item: this.#items.at(-1) });
    return end;
  }

  #sides(at, end, sign) {
    const before = at > this.start ? this.text[at - 1] : this.before;
    const after = end < this.end ? this.text[end] : "";
    const left = !SPACE.test(after) && (!PUNCTUATION.test(after) || isEdge(before));
    const right = !SPACE.test(before) && (!PUNCTUATION.test(before) || isEdge(after));
    if (sign !== "_") return { opens: left, closes: right };
    return {
      opens: left && (!right || PUNCTUATION.test(before)),
      closes: right && (!left || PUNCTUATION.test(after)),
    };
  }

  #close(at, end, run) {
    while (at < end) {
      const index = this.#openerFor(run, at);
      if (index < 0) break;
      const opener = this.#openers[index];
      const count = run.sign !== "~" && (opener.count < 2 || end - at < 2) ? 1 : 2;
      if (end - at < count) break;
      this.#openers.length = index + 1;
      this.#wrap(opener, at, count, run.sign);
      at += count;
      if (opener.count === 0) this.#openers.pop();
    }
    return at;
  }

  #openerFor(run, at) {
    for (let index = this.#openers.length - 1; index >= 0; index--) {
      const opener = this.#openers[index];
      if (at > opener.item.start + REACH) return -1;
      if (isPair(opener, run)) return index;
    }
    return -1;
  }

  #wrap(opener, at, count, sign) {
    const place = this.#items.lastIndexOf(opener.item);
    const inner = this.#items.splice(place + 1);
    const node = document.createElement(sign === "~" ? "del" : count === 2 ? "strong" : "em");
    for (const item of inner) node.append(...this.nodesOf(item));
    opener.item.end -= count;
    opener.count -= count;
    if (opener.count === 0) this.#items.pop();
    this.#push(opener.item.end, at + count, node);
  }

  // Everything else.

  #code(at) {
    let begin = at;
    while (begin < this.end && this.text[begin] === "`") begin++;
    const mark = this.text.slice(at, begin);
    if (begin === this.text.length) this.#waitIfCut(at);
    let end = this.#other(at, begin, mark);
    while (end >= 0 && this.text[end + mark.length] === "`") {
      let next = end;
      while (this.text[next] === "`") next++;
      if (next - end === mark.length) break;
      end = this.#other(at, next, mark);
    }
    if (end < 0) return { end: begin };
    if (end + mark.length === this.text.length) this.#wait(at);
    const node = document.createElement("code");
    node.append(...this.#codeNodes(begin, end));
    return { node, end: end + mark.length };
  }

  #codeNodes(start, end) {
    const text = this.text.slice(start, end);
    const isPadded = text.startsWith(" ") && text.endsWith(" ") && text.trim();
    const [first, last] = isPadded ? [start + 1, end - 1] : [start, end];
    if (!this.options.isCell) return this.passage.nodes(first, last);
    const bars = [...text.matchAll(/\\\|/g)].map((match) => start + match.index);
    const begins = [first, ...bars.map((bar) => bar + 1)];
    return begins.flatMap((begin, index) => this.passage.nodes(begin, bars[index] ?? last));
  }

  #link(at, mark) {
    if (this.options.isInLink) return null;
    const begin = at + mark.length;
    const close = this.#label(begin, at);
    if (close === null) return null;
    TARGET.lastIndex = close + 1;
    const window = this.text.slice(0, Math.min(this.end, at + REACH));
    const target = TARGET.exec(window);
    if (!target) {
      const isCut = close + 1 === this.text.length;
      if (isCut || this.text[close + 1] === "(") this.#waitIfCut(at);
      return null;
    }
    const title = target[3] ?? target[4] ?? "";
    const node = linkTo(target[1] ?? target[2], title);
    if (!node || close === begin) return null;
    node.append(...this.#inner(begin, close));
    return { node, end: TARGET.lastIndex };
  }

  #inner(start, end) {
    const options = { ...this.options, isWhole: true, isInLink: true, start, end };
    const scan = new Scan(this.passage, "[", options);
    return scan.items().flatMap((item) => scan.nodesOf(item));
  }

  /** Where the bracket closes, past brackets within; null if it does not. */
  #label(begin, at) {
    const limit = Math.min(this.end, at + REACH);
    for (let index = begin, depth = 0; index < limit; index++) {
      const sign = this.text[index];
      if (sign === "\\") index++;
      else if (sign === "[" && ++depth > 3) return null;
      else if (sign === "]" && depth-- === 0) return index;
    }
    this.#waitIfCut(at);
    return null;
  }

  #angled(at) {
    const limit = Math.min(this.end, at + REACH);
    let end = at + 1;
    while (end < limit && !/[\s<>]/.test(this.text[end])) end++;
    if (end === this.text.length) this.#waitIfCut(at);
    if (this.text[end] !== ">" || end === limit) return null;
    const node = this.options.isInLink ? null : linkTo(this.text.slice(at + 1, end));
    node?.append(...this.passage.nodes(at + 1, end));
    return node && { node, end: end + 1 };
  }

  #bare(at) {
    const before = at > this.start ? this.text[at - 1] : this.before;
    if (this.options.isInLink || WORD.test(before)) return null;
    BARE.lastIndex = at;
    const address = BARE.exec(this.text.slice(0, Math.min(this.end, at + REACH)));
    if (at + address[0].length === this.text.length) this.#waitIfCut(at);
    const text = withoutTrailing(address[0]);
    const node = linkTo(text);
    node?.append(...this.passage.nodes(at, at + text.length));
    return node && { node, end: at + text.length };
  }

  /** Formulas in TeX stay as they are written. */
  #math(at) {
    const mark = this.text.slice(at, at + 2);
    if (!(mark in MATH)) return null;
    const end = this.#other(at, at + 2, MATH[mark]);
    return end < 0 ? null : { end: end + 2 };
  }

  #escape(at) {
    if (at + 1 === this.text.length) this.#wait(at);
    if (this.text[at] !== "\\" || at + 1 >= this.end) return null;
    if (!/[\\`*_~#+\-.!|<>$\n]/.test(this.text[at + 1])) return null;
    const node = document.createDocumentFragment();
    node.append(...this.passage.nodes(at + 1, at + 2));
    return { node, end: at + 2 };
  }

  /** Where a mark's other end stands, at or after `begin`; -1 if it has none. */
  #other(at, begin, mark) {
    if (this.#without.has(mark)) return -1;
    const limit = Math.min(this.end, at + REACH);
    const place = this.text.slice(0, limit).indexOf(mark, begin);
    if (place >= 0) return place;
    this.#waitIfCut(at);
    if (limit === this.end) this.#without.add(mark);
    return -1;
  }

  #wait(at) {
    this.pending = Math.min(this.pending, at);
  }

  /** The mark at a place may still find what it lacks, unless the text has gone far beyond it. */
  #waitIfCut(at) {
    if (this.text.length < at + REACH) this.#wait(at);
  }

  #notePending() {
    const next = Math.min(this.pending, this.text.length); // where the next run that closes may be
    const oldest = this.#openers.find((opener) => next <= opener.item.start + REACH);
    if (oldest) this.#wait(oldest.item.start);
    const cut = CUT_MARK.exec(this.text.slice(-8));
    if (cut) this.#wait(this.text.length - cut[0].length);
  }
}

function isEdge(character) {
  return SPACE.test(character) || PUNCTUATION.test(character);
}

/** Whether two runs pair, by CommonMark's rule of three where a run may do both. */
function isPair(opener, run) {
  if (opener.sign !== run.sign) return false;
  if (run.sign === "~") return opener.length === 2 && run.length === 2;
  const sum = opener.length + run.length;
  return !(opener.both || run.both) || sum % 3 > 0 || run.length % 3 === 0;
}

/** An address without the punctuation of the sentence that it ends; parentheses stay in pairs. */
function withoutTrailing(address) {
  let open = address.split("(").length - address.split(")").length;
  let end = address.length;
  for (; /[?!.,:;*_~'")\]}]/.test(address[end - 1]); end--) {
    if (address[end - 1] !== ")") continue;
    if (open >= 0) break;
    open++;
  }
  return address.slice(0, end);
}

function linkTo(address, title = "") {
  if (!ADDRESS.test(address) || !URL.canParse(address)) return null;
  const link = document.createElement("a");
  link.href = address;
  link.target = "_blank";
  link.rel = "noopener noreferrer";
  if (title) link.title = title;
  return link;
}
