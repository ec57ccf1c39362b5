// Sampling settings: a form, kept for this tab, that becomes fields of a request.

const STORED = "jaxinfer-settings";
const NUMBERS = [
  "temperature",
  "max_tokens",
  "top_p",
  "top_k",
  "min_p",
  "seed",
  "presence_penalty",
  "repetition_penalty",
];
const dialog = document.getElementById("settings");
const form = dialog.querySelector("form");
const fault = document.getElementById("settings-fault");

restore();
document.getElementById("open-settings").addEventListener("click", () => dialog.showModal());
document.getElementById("reset-settings").addEventListener("click", () => {
  form.reset();
  keep();
});
form.addEventListener("input", keep);
form.addEventListener("submit", (event) => {
  if (!checkSettings()) event.preventDefault();
});
dialog.addEventListener("click", (event) => {
  if (event.target === dialog) form.requestSubmit(); // the backdrop
});

/** The system message; "" for none. */
export function systemMessage() {
  return field("system").value.trim();
}

/** Whether all settings can be sent; if one can't, the form is opened and says which. */
export function checkSettings() {
  fault.textContent = firstFault();
  if (fault.textContent && !dialog.open) dialog.showModal();
  return !fault.textContent;
}

/** Fields of a chat request; empty ones are left out. The settings must have been checked. */
export function requestFields() {
  const fields = {};
  for (const name of NUMBERS) {
    if (field(name).value !== "") fields[name] = field(name).valueAsNumber;
  }
  if (field("thinking").value) {
    fields.chat_template_kwargs = { enable_thinking: field("thinking").value === "on" };
  }
  if (field("alternatives").checked) Object.assign(fields, { logprobs: true, top_logprobs: 5 });
  if (field("tools").value.trim()) fields.tools = JSON.parse(field("tools").value);
  return fields;
}

function field(name) {
  return form.elements.namedItem(name);
}

function firstFault() {
  const wrong = NUMBERS.map(field).find((each) => !each.checkValidity());
  if (!wrong) return faultOfTools();
  return `${wrong.labels[0].firstChild.data}: ${wrong.validationMessage}`;
}

function faultOfTools() {
  const text = field("tools").value.trim();
  if (!text) return "";
  try {
    return Array.isArray(JSON.parse(text)) ? "" : "Tools: expected a JSON array, in [ ].";
  } catch (error) {
    return `Tools: not JSON (${error.message}).`;
  }
}

function keep() {
  fault.textContent = firstFault();
  const values = Object.fromEntries(
    [...form.elements].filter((each) => each.name).map((each) => [each.name, valueOf(each)]),
  );
  try {
    sessionStorage.setItem(STORED, JSON.stringify(values));
  } catch {
    // storage is blocked: settings last as long as the page
  }
}

function restore() {
  try {
    const values = JSON.parse(sessionStorage.getItem(STORED) ?? "{}");
    for (const [name, value] of Object.entries(values)) {
      const each = field(name);
      if (each?.type === "checkbox") each.checked = value;
      else if (each) each.value = value;
    }
  } catch {
    // blocked, as above
  }
}

function valueOf(each) {
  return each.type === "checkbox" ? each.checked : each.value;
}
