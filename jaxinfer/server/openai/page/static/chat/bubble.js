// A message of the reader on the page, which can be edited in place.

const template = document.getElementById("bubble-template").content.firstElementChild;

/** Its text, with a button that puts an editor in the text's place. */
export class Bubble {
  #text;
  #editor;
  #field;
  #edit;

  /**
   * @param {string} text
   * @param {{from?: string, onEdit?: (text: string) => Promise<boolean>}} options who says it, and
   *   what sends another text instead; without it, it can't be edited
   */
  constructor(text, { from = "You", onEdit = null } = {}) {
    this.element = template.cloneNode(true);
    this.#text = this.#part("said");
    this.#editor = this.#part("editor");
    this.#field = this.#editor.querySelector("textarea");
    this.#edit = this.#part("edit");
    this.#part("from").textContent = `${from}: `;
    this.#text.textContent = text;
    this.onEdit = onEdit;
    this.#edit.hidden = !onEdit;
    this.#edit.addEventListener("click", () => this.#begin());
    this.#part("cancel").addEventListener("click", () => this.#end());
    this.#editor.addEventListener("submit", (event) => this.#send(event));
    this.#editor.addEventListener("keydown", (event) => this.#press(event));
  }

  #begin() {
    this.#field.value = this.#text.textContent;
    this.#show(true);
    this.#field.focus();
  }

  #end() {
    this.#show(false);
    this.#edit.focus();
  }

  #show(isEdited) {
    this.#editor.hidden = !isEdited;
    this.#text.hidden = isEdited;
    this.#edit.hidden = isEdited;
  }

  async #send(event) {
    event.preventDefault();
    if (await this.onEdit(this.#field.value)) document.getElementById("prompt").focus();
  }

  #press(event) {
    if (event.key === "Escape") {
      event.stopPropagation(); // ends the edit, and stops no answer
      this.#end();
    }
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    if (event.target !== this.#field) return;
    event.preventDefault();
    this.#editor.requestSubmit();
  }

  #part(name) {
    return this.element.querySelector(`[data-part=${name}]`);
  }
}
