// Which block of Markdown a line begins or goes on, told from the line and what is open before it.

const LONGEST_MARK = 1000; // characters: a longer line is no rule, fence or row of dashes
const DEEPEST = 20; // quotes and items within each other; marks of more are text
const RULE = /^([-*_])(?:[ \t]*\1)*[ \t]*$/;
const FENCE = /^(`{3,}(?=[^`]*$)|~{3,})(.{0,200})$/;
const HEADING = /^(#{1,6})[ \t]+(?=\S)/;
const ITEM = /^(?:([-*+])|(\d{1,9})([.)]))([ \t]+)(?=\S)/;
const DASHES = /^\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;
// Beginnings of lines that more characters may still turn into one of the above.
const MAY_BEGIN = /^(?:`{1,2}|`{3,}[^`]*|~{1,2}|~{3}.*|#{1,6}[ \t]*|(?:[-*+]|\d{1,9}[.)]?)[ \t]*)$/;
const MAY_BE_DASHES = /^[|:\- \t]+$/;

/**
 * What a line is.
 * @typedef {object} Line
 * @property {number} kept how many of the open containers it stays in
 * @property {object[]} opened containers that it opens: quotes and items of lists
 * @property {string} kind "text", "heading", "fence", "code", "end" of a fence, "rule", "dashes" of
 *   a table, or "blank"; "text" goes on a paragraph or a table if one is open
 * @property {number} at where its text begins
 */

/**
 * @param {string} line without its end; leading marks are enough once they tell what it is
 * @param {boolean} isWhole whether it has ended
 * @param {{kind: string, least?: number, width?: number}[]} containers that are open
 * @param {object | null} leaf the block within them that is open
 * @returns {Line | null} null where more characters are needed
 */
export function lineOf(line, isWhole, containers, leaf) {
  if (!isWhole && line.endsWith("\r")) return null;
  line = line.replace(/\r$/, "");
  const mayGrow = !isWhole && line.length < LONGEST_MARK;
  const isMark = line.length < LONGEST_MARK;
  let { at, kept } = kinship(line, containers, leaf?.kind === "fence");
  const rest = line.slice(at);
  if (mayGrow && !rest.trim()) return null;
  const goesOn = kept === containers.length;
  if (leaf?.kind === "fence" && goesOn) return lineOfFence(line, at, leaf, mayGrow, isMark);

  const opened = [];
  let inside = goesOn ? leaf : null;
  for (;;) {
    const { columns, end } = indentOf(line, at);
    const text = line.slice(end);
    const found = (kind, more) => ({ kind, kept, opened, at: end, ...more });
    if (!text) return mayGrow ? null : found(isWhole ? "blank" : "text");
    const isInItem = (opened.at(-1) ?? containers[kept - 1])?.kind === "item";
    if (columns >= 4 && inside?.kind !== "paragraph" && !(isInItem && ITEM.test(text))) {
      return found("code", { at: skip(line, at, 4) });
    }
    if (mayGrow && (RULE.test(text) || MAY_BEGIN.test(text))) return null;
    if (mayGrow && inside?.kind === "paragraph" && MAY_BE_DASHES.test(text)) return null;

    if (isMark && RULE.test(text) && text.replace(/[ \t]/g, "").length > 2) return found("rule");
    const fence = isMark && FENCE.exec(text);
    if (fence) return found("fence", { mark: fence[1], label: fence[2].trim(), columns });
    const heading = HEADING.exec(text);
    if (heading) return found("heading", { level: heading[1].length, at: end + heading[0].length });
    const isDeep = kept + opened.length >= DEEPEST;
    if (text[0] === ">" && !isDeep) {
      opened.push({ kind: "quote" });
      at = end + (text[1] === " " ? 2 : 1);
      inside = null;
      continue;
    }
    const item = ITEM.exec(text);
    if (item && !isDeep && (inside?.kind !== "paragraph" || !item[2] || Number(item[2]) === 1)) {
      opened.push(itemOf(item, columns));
      at = end + item[0].length;
      inside = null;
      continue;
    }
    if (isMark && inside?.kind === "paragraph" && text.includes("|") && DASHES.test(text)) {
      return found("dashes", { sides: sidesOf(text) });
    }
    // A paragraph goes on in a line that leaves its quote or item without beginning anything.
    if (!opened.length && leaf?.kind === "paragraph") kept = containers.length;
    return found("text");
  }
}

/** How many containers a line stays in, and where it goes on within them. */
function kinship(line, containers, isInFence) {
  let at = 0;
  let kept = 0;
  for (const { kind, least, width } of containers) {
    const { columns, end } = indentOf(line, at);
    if (kind === "quote") {
      if (columns > 3 || line[end] !== ">") break;
      at = end + (line[end + 1] === " " ? 2 : 1);
    } else {
      const isBlank = end === line.length;
      if (columns < least && !isBlank && !isInFence) break;
      at = skip(line, at, width);
    }
    kept++;
  }
  return { at, kept };
}

function lineOfFence(line, at, leaf, mayGrow, isMark) {
  const { end } = indentOf(line, at);
  const text = line.slice(end);
  const isEnd = isMark && /^(`+|~+)[ \t]*$/.test(text) && text.startsWith(leaf.mark);
  const mayEnd = leaf.mark.startsWith(text) || isEnd;
  if (mayGrow && mayEnd) return null;
  const common = { kept: Infinity, opened: [] };
  if (isEnd) return { ...common, kind: "end", at: line.length };
  return { ...common, kind: "code", at: skip(line, at, leaf.columns) };
}

function itemOf([mark, bullet, number, sign, space], columns) {
  // Text that stands far behind its mark, as indented code does, begins after one space.
  const width = columns + mark.length - (space.length > 4 ? space.length - 1 : 0);
  const least = Math.min(width, columns + 2); // models indent by less than CommonMark asks for
  return { kind: "item", sign: bullet ?? sign, number: number && Number(number), width, least };
}

/** The sides that the columns of a table are set to. */
function sidesOf(dashes) {
  return cellsOf(dashes).map((cell) => {
    const [left, right] = [cell.startsWith(":"), cell.endsWith(":")];
    return right ? (left ? "center" : "right") : "";
  });
}

/** The cells of a table's row, without the bars around them. */
export function cellsOf(row) {
  const bare = row.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "");
  return bare.split(/(?<!\\)\|/).map((cell) => cell.trim());
}

function indentOf(line, at) {
  let columns = 0;
  let end = at;
  for (; line[end] === " " || line[end] === "\t"; end++) columns += line[end] === "\t" ? 4 : 1;
  return { columns, end };
}

/** Where so many columns of white space end, or what there is of them. */
function skip(line, at, columns) {
  while (columns > 0 && (line[at] === " " || line[at] === "\t")) {
    columns -= line[at] === "\t" ? 4 : 1;
    at++;
  }
  return at;
}
