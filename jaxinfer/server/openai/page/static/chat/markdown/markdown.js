// Markdown that grows: it becomes elements as it comes, and what is settled is not laid out anew.

import { lineOf } from "./blocks.js";
import { CodeLeaf, countCells, TableLeaf, TextLeaf } from "./leaves.js";
import { Passage } from "./passage.js";

const NOTHING = Infinity; // where the text of a line begins that has none

/**
 * Fills an element. All text enters it as text nodes, HTML too; its elements and their attributes
 * are those that this folder names. The beginning of a line is held back while it may still become
 * the mark of a list, a heading, a rule or a fence.
 */
export class Markdown {
  #element;
  #containers = []; // open quotes and items of lists, as lineOf makes them, with what they hold
  #leaf = null; // the open block of text
  #line = new Passage(); // of the last line, what is in no leaf
  #isTold = false; // what the last line is
  #caret = null; // the element of the leaf that came last

  /** @param {HTMLElement} element */
  constructor(element) {
    this.#element = element;
  }

  /** @param {import("./passage.js").Piece[]} pieces that come next */
  add(pieces) {
    for (const { text, entries } of pieces) {
      const [first, ...rest] = text.split("\n");
      this.#line.add({ text: first, entries });
      for (const next of rest) {
        this.#advance(true);
        this.#isTold = false;
        this.#line.add({ text: next, entries });
      }
    }
    this.#advance(false);
    this.#leaf?.lay(false);
  }

  /** Nothing else comes; if something does, it is a block of its own. */
  end() {
    if (this.#line.text) this.#advance(true);
    this.#isTold = false;
    this.#close();
    this.#moveCaret(null);
  }

  #advance(isWhole) {
    let begin = 0;
    if (!this.#isTold) {
      const line = lineOf(this.#line.text, isWhole, this.#containers, this.#leaf);
      if (!line) return;
      begin = this.#begin(line);
      this.#isTold = true;
    }
    for (const piece of this.#line.pieces(begin)) this.#leaf.add(piece);
    this.#line = new Passage();
  }

  /** Close and open blocks for a line. Returns where its text begins. */
  #begin(line) {
    const left = this.#containers[line.kept];
    if (left || line.opened.length) this.#close();
    if (left) this.#containers.length = line.kept;
    for (const [index, container] of line.opened.entries()) {
      this.#open(container, index === 0 ? left : undefined);
    }
    return this.#beginLeaf(line);
  }

  #beginLeaf(line) {
    const open = this.#leaf?.kind;
    if (line.kind === "blank" && open === "indented") this.#leaf.startLine();
    else if (line.kind === "blank" || line.kind === "end") this.#close();
    else if (line.kind === "rule") this.#addRule();
    else if (line.kind === "dashes" && this.#beginTable(line.sides)) return NOTHING;
    else if (line.kind === "fence") this.#hold(new CodeLeaf("fence", line));
    else {
      this.#beginLine(line, open);
      return line.at;
    }
    return NOTHING;
  }

  #beginLine(line, open) {
    if (line.kind === "heading") {
      const name = `h${Math.min(line.level + 2, 6)}`; // below the headings of the page
      this.#hold(new TextLeaf("heading", name));
    } else if (line.kind === "code") {
      if (open !== "fence" && open !== "indented") this.#hold(new CodeLeaf("indented", {}));
    } else if (open !== "paragraph" && open !== "table") this.#hold(new TextLeaf("paragraph", "p"));
    this.#leaf.startLine();
  }

  /** The paragraph's last line becomes the head of a table, if it has a cell for each column. */
  #beginTable(sides) {
    const paragraph = this.#leaf;
    if (countCells(paragraph) !== sides.length) return false;
    const before = paragraph.withoutLastLine();
    const table = new TableLeaf(sides);
    table.startLine();
    for (const piece of paragraph.lastLine) table.add(piece);
    this.#hold(table);
    paragraph.element.replaceWith(...(before ? [before.element] : []));
    return true;
  }

  #addRule() {
    this.#close();
    this.#inside().append(document.createElement("hr"));
  }

  #open(container, left) {
    const element = document.createElement(container.kind === "quote" ? "blockquote" : "li");
    if (container.kind === "quote") this.#inside().append(element);
    else {
      const isNext = left?.kind === "item" && left.sign === container.sign;
      container.list = isNext ? left.list : this.#addList(container);
      if (container.number !== undefined) element.value = container.number;
      container.list.append(element);
    }
    this.#containers.push(Object.assign(container, { inside: element }));
  }

  #addList({ number, sign }) {
    const list = document.createElement(number === undefined ? "ul" : "ol");
    if (sign === ")") list.className = "parentheses";
    this.#inside().append(list);
    return list;
  }

  #inside() {
    return this.#containers.at(-1)?.inside ?? this.#element;
  }

  #hold(leaf) {
    this.#close();
    this.#leaf = leaf;
    this.#inside().append(leaf.element);
    this.#moveCaret(leaf.element);
  }

  #close() {
    this.#leaf?.lay(true);
    this.#leaf = null;
  }

  #moveCaret(element) {
    delete this.#caret?.dataset.caret;
    this.#caret = element;
    if (element) element.dataset.caret = "";
  }
}
