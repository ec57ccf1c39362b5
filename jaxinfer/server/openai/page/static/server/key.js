// The API key: asked for when the server wants one, kept for this tab alone.

const STORED = "jaxinfer-key";
const dialog = document.getElementById("key-dialog");
const input = document.getElementById("key");
const forget = document.getElementById("forget-key");

let key = read();
let asking = null; // requests that fail at once share one question
show();

/** The key, or "" where there is none. */
export function currentKey() {
  return key;
}

/**
 * Ask the reader.
 * @param {string} tried the key that was refused; if another has come meanwhile, nothing is asked
 * @returns {Promise<boolean>} whether there is a key to try
 */
export function askForKey(tried) {
  if (key !== tried) return Promise.resolve(true);
  asking ??= ask(tried).finally(() => {
    asking = null;
  });
  return asking;
}

function ask(tried) {
  const fault = tried ? "The server does not know this key." : "";
  document.getElementById("key-fault").textContent = fault;
  input.value = "";
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(Boolean(dialog.returnValue)), { once: true });
  });
}

dialog.querySelector("form").addEventListener("submit", (event) => {
  event.preventDefault();
  write(input.value.trim());
  input.value = "";
  dialog.close(key);
});
document.getElementById("key-cancel").addEventListener("click", () => dialog.close(""));
forget.addEventListener("click", () => write(""));

function read() {
  try {
    return sessionStorage.getItem(STORED) ?? "";
  } catch {
    return ""; // storage is blocked: the key lasts as long as the page
  }
}

function write(value) {
  key = value;
  try {
    if (value) sessionStorage.setItem(STORED, value);
    else sessionStorage.removeItem(STORED);
  } catch {
    // as above
  }
  show();
}

function show() {
  forget.hidden = !key;
}
