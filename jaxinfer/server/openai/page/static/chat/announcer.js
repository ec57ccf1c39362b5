// Reads a growing answer out to screen readers sentence by sentence, not token by token.

const region = document.getElementById("announcer");
const SENTENCE = /^[\s\S]*[.!?:\n](?=\s|$)/;
const LONGEST = 300;
let unread = "";

/** Add to what is to be read. */
export function announcePart(text) {
  unread += text;
  const [said] = SENTENCE.exec(unread) ?? (unread.length > LONGEST ? [unread] : []);
  if (said === undefined) return;
  unread = unread.slice(said.length);
  say(said);
}

/** Read what is left, and then this. */
export function announce(text) {
  say(`${unread} ${text}`);
  unread = "";
}

function say(text) {
  region.textContent = text.trim();
}
