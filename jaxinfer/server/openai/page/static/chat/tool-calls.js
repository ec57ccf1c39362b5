// Calls of tools that a model asks for: shown as they come, answered by the reader.

/**
 * The calls of one answer.
 * @param {(results: object[]) => void} onResults takes messages of role "tool", one a call
 */
export class ToolCalls {
  #calls = [];

  constructor(onResults) {
    this.element = document.createElement("form");
    this.element.className = "tool-calls";
    this.element.hidden = true;
    this.element.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#close();
      onResults(this.#results());
    });
  }

  /** @param {object[]} deltas of a chunk's delta.tool_calls */
  add(deltas) {
    this.element.hidden = false;
    for (const delta of deltas) {
      const call = (this.#calls[delta.index ?? 0] ??= this.#begin());
      call.id ||= delta.id ?? "";
      call.name += delta.function?.name ?? "";
      call.arguments += delta.function?.arguments ?? "";
      call.title.textContent = call.name;
      call.code.textContent = call.arguments;
    }
  }

  /** All have come: lay their arguments out, and ask for results. */
  end() {
    for (const call of this.#present()) {
      call.code.textContent = laidOut(call.arguments);
      call.answer.hidden = false;
    }
    if (this.#present().length === 0) return;
    const button = document.createElement("button");
    button.className = "plain";
    button.textContent = "Send results";
    this.element.append(button);
  }

  /** The calls as a message of the conversation has them. */
  forMessage() {
    return this.#present().map(({ id, name, arguments: text }) => ({
      id,
      type: "function",
      function: { name, arguments: text },
    }));
  }

  #present() {
    return this.#calls.filter(Boolean);
  }

  #results() {
    return this.#present().map(({ id, result }) => ({
      role: "tool",
      tool_call_id: id,
      content: result.value,
    }));
  }

  #close() {
    this.element.querySelector("button")?.remove();
    for (const { result } of this.#present()) result.readOnly = true;
  }

  #begin() {
    const card = document.createElement("div");
    const title = document.createElement("h3");
    const code = document.createElement("pre");
    const answer = document.createElement("label");
    const result = document.createElement("textarea");
    card.className = "tool-call";
    code.tabIndex = 0; // so that the keyboard can scroll it
    answer.className = "row tall";
    answer.hidden = true;
    result.rows = 2;
    answer.append("Result", result);
    card.append(title, code, answer);
    this.element.append(card);
    return { id: "", name: "", arguments: "", title, code, answer, result };
  }
}

function laidOut(json) {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json; // a model may write what is no JSON
  }
}
