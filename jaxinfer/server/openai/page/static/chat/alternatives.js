// What else was likely at a token: shown on hover, on a tap, and with the arrow keys.

const SHOWN = { " ": "␣", "\n": "⏎", "\t": "⇥" };
const entriesOf = new WeakMap(); // of an element that shows a token
const box = document.getElementById("alternatives");
let current = null;

/**
 * The element of a token.
 * @param {string} text
 * @param {object[]} entries its log-probabilities; several where tokens share a character
 */
export function tokenElement(text, entries) {
  const element = document.createElement("span");
  element.className = "token";
  element.textContent = text;
  entriesOf.set(element, entries);
  return element;
}

/**
 * Show alternatives for the tokens in an element, which must be focusable.
 * @param {HTMLElement} text
 */
export function useAlternatives(text) {
  text.addEventListener("pointerover", (event) => show(event.target.closest(".token")));
  text.addEventListener("pointerleave", (event) => {
    if (event.pointerType === "mouse") hide();
  });
  text.addEventListener("click", (event) => show(event.target.closest(".token")));
  text.addEventListener("keydown", (event) => move(event, text));
  text.addEventListener("blur", hide);
}

/** Show none. */
export function hide() {
  current?.classList.remove("current");
  current?.closest("[aria-describedby]")?.removeAttribute("aria-describedby");
  current = null;
  box.hidden = true;
}

addEventListener("resize", hide);
document.addEventListener("scroll", hide, true);
document.addEventListener("pointerdown", (event) => {
  if (!event.target.closest(".token")) hide();
});

function move(event, text) {
  if (event.target !== text) return; // code and tables within scroll by the same keys
  const tokens = [...text.getElementsByClassName("token")];
  const now = text.contains(current) ? tokens.indexOf(current) : -1;
  const next = { ArrowRight: now + 1, ArrowLeft: now < 0 ? -1 : now - 1, Home: 0, End: -1 }[event.key];
  if (event.key === "Escape" && current) {
    event.stopPropagation(); // closes this, and stops no answer
    hide();
  }
  if (next === undefined || !tokens.length) return;
  event.preventDefault();
  const token = next >= tokens.length ? tokens.at(-1) : tokens.at(next);
  token.scrollIntoView({ block: "nearest" });
  requestAnimationFrame(() => show(token)); // after the scroll, which hides
}

function show(token) {
  if (!token || token === current) return;
  hide();
  current = token;
  token.classList.add("current");
  box.replaceChildren(...entriesOf.get(token).map(listOf));
  box.hidden = false;
  token.closest(".text").setAttribute("aria-describedby", box.id);
  place(token.getClientRects()[0]);
}

function place(at) {
  const gap = 6;
  const { width, height } = box.getBoundingClientRect();
  const left = Math.min(Math.max(at.left, gap), innerWidth - width - gap);
  const below = at.bottom + gap;
  const top = below + height > innerHeight ? Math.max(gap, at.top - gap - height) : below;
  box.style.left = `${left}px`;
  box.style.top = `${top}px`;
}

function listOf(entry) {
  const list = document.createElement("ol");
  const likely = [...(entry.top_logprobs ?? [])];
  if (!likely.some((each) => isSame(each, entry))) likely.push(entry);
  for (const each of likely) list.append(rowOf(each, isSame(each, entry)));
  return list;
}

function rowOf(entry, isChosen) {
  const row = document.createElement("li");
  const share = Math.exp(entry.logprob);
  row.className = isChosen ? "chosen" : "";
  const name = document.createElement("span");
  name.className = "name";
  name.textContent = visible(entry);
  const bar = document.createElement("span");
  bar.className = "bar-of-share";
  bar.style.setProperty("--share", share);
  const number = document.createElement("span");
  number.className = "number";
  number.textContent = percent(share);
  row.append(name, bar, number);
  if (isChosen) row.append(unseen(", chosen"));
  return row;
}

function unseen(text) {
  const element = document.createElement("span");
  element.className = "unseen";
  element.textContent = text;
  return element;
}

function isSame(one, other) {
  return one.token === other.token && String(one.bytes) === String(other.bytes);
}

/** A token as it can be seen: signs for white space, hexadecimal for parts of characters. */
function visible({ token, bytes }) {
  try {
    const text = bytes ? new TextDecoder("utf-8", { fatal: true }).decode(Uint8Array.from(bytes)) : token;
    return text.replace(/[ \n\t]/g, (character) => SHOWN[character]);
  } catch {
    return bytes.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
  }
}

function percent(share) {
  if (share > 0 && share < 0.001) return "<0.1%";
  if (share > 0.999 && share < 1) return ">99.9%";
  return `${(share * 100).toFixed(1)}%`;
}
