// Ties the page together: the composer, the buttons, the model's name.

import { Chat } from "./chat/chat.js";
import { listModels } from "./server/api.js";

const composer = document.getElementById("composer");
const prompt = document.getElementById("prompt");
const turns = document.getElementById("turns");
const model = document.getElementById("model");
const modelName = document.getElementById("model-name");

const chat = new Chat(() => model.value || undefined);

useComposer();
useTurns();
showModels();

function useComposer() {
  composer.addEventListener("submit", (event) => {
    event.preventDefault();
    if (chat.say(prompt.value)) prompt.value = "";
  });
  prompt.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    composer.requestSubmit();
  });
  document.getElementById("stop").addEventListener("click", () => chat.stop());
  document.getElementById("new-chat").addEventListener("click", () => {
    chat.clear();
    prompt.focus();
  });
  document.getElementById("welcome").addEventListener("click", (event) => {
    const suggestion = event.target.closest("button");
    if (suggestion) chat.say(suggestion.textContent);
    prompt.focus();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !document.querySelector("dialog[open]")) chat.stop();
  });
}

function useTurns() {
  turns.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-part]");
    if (button?.dataset.part === "regenerate") {
      chat.regenerate();
      prompt.focus();
    }
    if (button?.dataset.part === "copy") copy(button, chat.textOf(button.closest(".turn")));
    if (button?.dataset.part === "copy-code") copy(button, codeOf(button));
  });
}

function codeOf(button) {
  return button.closest(".code-block").querySelector("code").textContent;
}

async function copy(button, text) {
  await navigator.clipboard.writeText(text);
  button.textContent = "Copied";
  setTimeout(() => (button.textContent = "Copy"), 1500);
}

async function showModels() {
  try {
    const cards = await listModels();
    model.replaceChildren(...cards.map((card) => new Option(card.id, card.id)));
    model.hidden = cards.length < 2;
    modelName.hidden = !model.hidden;
    modelName.textContent = cards[0].id;
    modelName.title = `${cards[0].max_model_len.toLocaleString("en")} tokens of context`;
  } catch (error) {
    modelName.textContent = error.message; // the model's name is left to the server then
  }
}
