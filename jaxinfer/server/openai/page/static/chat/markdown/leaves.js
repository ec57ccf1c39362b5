// Blocks that hold text: paragraphs, headings, code and tables, each of which grows by the line.

import { cellsOf } from "./blocks.js";
import { Inlines } from "./inlines.js";
import { nodeOf } from "./passage.js";

/** A paragraph or a heading. */
export class TextLeaf {
  #pieces = [];
  #lastLine = 0; // the first of its pieces
  #inlines;

  /**
   * @param {string} kind "paragraph" or "heading"
   * @param {string} name of its element
   */
  constructor(kind, name) {
    this.kind = kind;
    this.element = document.createElement(name);
    this.#inlines = new Inlines(this.element);
  }

  startLine() {
    if (this.#pieces.length) this.add({ text: "\n", entries: null });
    this.#lastLine = this.#pieces.length;
  }

  add(piece) {
    this.#pieces.push(piece);
    this.#inlines.add(piece);
  }

  lay(isWhole) {
    this.#inlines.lay(isWhole);
  }

  get lastLine() {
    return this.#pieces.slice(this.#lastLine);
  }

  /** A paragraph of the lines before the last one; null where there are none. */
  withoutLastLine() {
    if (!this.#lastLine) return null;
    const leaf = new TextLeaf(this.kind, this.element.localName);
    for (const piece of this.#pieces.slice(0, this.#lastLine - 1)) leaf.add(piece);
    leaf.lay(true);
    return leaf;
  }
}

/** Code, with its language and a button that copies it. */
export class CodeLeaf {
  #code = document.createElement("code");
  #breaks = -1; // ends of lines that are not shown yet: the last ones never are

  /**
   * @param {string} kind "fence", which `mark` begins and ends, or "indented"
   * @param {{mark?: string, label?: string, columns?: number}} fence columns that it is indented by
   */
  constructor(kind, { mark = "", label = "", columns = 0 }) {
    Object.assign(this, { kind, mark, columns });
    this.element = document.createElement("div");
    this.element.className = "code-block";
    this.element.append(headOf(label), this.#scroller(label));
  }

  startLine() {
    this.#breaks++;
  }

  add(piece) {
    if (this.#breaks > 0) this.#code.append("\n".repeat(this.#breaks));
    this.#breaks = 0;
    this.#code.append(nodeOf(piece));
  }

  lay() {}

  #scroller(label) {
    const scroller = document.createElement("pre");
    scroller.tabIndex = 0; // so that the keyboard can scroll it
    scroller.setAttribute("role", "group");
    scroller.setAttribute("aria-label", label ? `Code, ${label}` : "Code");
    scroller.append(this.#code);
    return scroller;
  }
}

function headOf(label) {
  const head = document.createElement("div");
  const language = document.createElement("span");
  const copy = document.createElement("button");
  head.className = "code-head";
  language.textContent = label;
  copy.type = "button";
  copy.className = "plain";
  copy.dataset.part = "copy-code";
  copy.textContent = "Copy";
  copy.hidden = !navigator.clipboard;
  head.append(language, copy);
  return head;
}

/** A table: the first row that it is given is its head. */
export class TableLeaf {
  kind = "table";
  #sides;
  #table = document.createElement("table");
  #row = null; // the last one: its element, its open cell, and how far it is

  /** @param {string[]} sides of the columns: "right", "center" or "" */
  constructor(sides) {
    this.#sides = sides;
    this.element = document.createElement("div");
    this.element.className = "table";
    this.element.tabIndex = 0; // as above
    this.element.setAttribute("role", "group");
    this.element.setAttribute("aria-label", "Table");
    this.element.append(this.#table);
  }

  startLine() {
    this.lay(true);
    const table = this.#table;
    const isHead = !table.tHead;
    const part = isHead ? table.createTHead() : (table.tBodies[0] ?? table.createTBody());
    const element = document.createElement("tr");
    part.append(element);
    this.#row = { element, isHead, count: 0, cell: null, isEscaped: false, isBegun: false };
  }

  /** A bar ends a cell, unless it begins the row or a backslash stands before it. */
  add({ text, entries }) {
    const row = this.#row;
    for (const part of text.split(/(\|)/)) {
      if (part === "|" && !row.isEscaped) this.#endCell();
      else if (row.cell || part.trim()) (row.cell ??= this.#cell()).add({ text: part, entries });
      if (part) row.isEscaped = part.endsWith("\\");
      row.isBegun ||= Boolean(part.trim());
    }
  }

  lay(isWhole) {
    this.#row?.cell?.lay(isWhole);
  }

  #endCell() {
    const row = this.#row;
    if (row.isBegun) (row.cell ??= this.#cell()).lay(true);
    row.cell = null;
  }

  #cell() {
    const row = this.#row;
    const element = document.createElement(row.isHead ? "th" : "td");
    if (row.isHead) element.scope = "col";
    const side = this.#sides[row.count++];
    if (side) element.className = side;
    row.element.append(element);
    return new Inlines(element, { isCell: true });
  }
}

/** How many cells a paragraph's last line would have as the head of a table. */
export function countCells(leaf) {
  return cellsOf(leaf.lastLine.map(({ text }) => text).join("")).length;
}
