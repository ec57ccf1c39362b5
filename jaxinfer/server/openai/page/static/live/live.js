// The live view: reads /metrics every second while it is seen, and draws the last minute.

import { KeyRefusedError, readMetrics, ServerError } from "../server/api.js";
import { FIGURES } from "./figures.js";
import { Scrape } from "./metrics.js";
import { Sparkline } from "./sparkline.js";

const EVERY_MS = 1000;

const state = document.getElementById("live-state");
const pause = document.getElementById("pause");

/** Shows nothing and asks nothing until `show(true)`. */
export class Live {
  #cards = new Map(FIGURES.map((figure) => [figure, cardOf(figure)]));
  #before = null;
  #isShown = false;
  #isPaused = false;
  #isAsking = false;

  constructor() {
    const cards = [...this.#cards.values()].map((card) => card.element);
    document.getElementById("figures").replaceChildren(...cards);
    pause.addEventListener("click", () => this.#setPaused(!this.#isPaused));
    setInterval(() => this.#refresh(), EVERY_MS);
  }

  /** @param {boolean} isShown whether the view is seen */
  show(isShown) {
    this.#isShown = isShown;
    this.#before = null;
    this.#refresh();
  }

  #setPaused(isPaused) {
    this.#isPaused = isPaused;
    this.#before = null;
    pause.textContent = isPaused ? "Go on" : "Pause";
    pause.setAttribute("aria-pressed", String(isPaused));
    if (isPaused) state.textContent = "Paused";
    this.#refresh();
  }

  async #refresh() {
    if (!this.#isShown || this.#isPaused || document.hidden) return;
    if (this.#isAsking) {
      state.textContent = "Waiting for the server…"; // it may be compiling
      return;
    }
    this.#isAsking = true;
    try {
      this.#draw(new Scrape(await readMetrics(), performance.now() / 1000));
      state.textContent = "Read every second";
    } catch (error) {
      if (!(error instanceof ServerError)) throw error;
      if (error instanceof KeyRefusedError) this.#setPaused(true); // or it would ask each second
      state.textContent = error.message;
      this.#before = null;
    } finally {
      this.#isAsking = false;
    }
  }

  #draw(scrape) {
    for (const [figure, card] of this.#cards) {
      const value = figure.value(scrape, this.#before);
      card.value.textContent = value === null ? "–" : written(value, figure.digits ?? 0);
      card.line.add(value);
    }
    this.#before = scrape;
  }
}

function written(value, digits) {
  const options = { minimumFractionDigits: digits, maximumFractionDigits: digits };
  return value.toLocaleString("en", options);
}

function cardOf(figure) {
  const element = document.createElement("div");
  const term = document.createElement("dt");
  const definition = document.createElement("dd");
  const value = document.createElement("span");
  const unit = document.createElement("span");
  const note = document.createElement("span");
  const line = new Sparkline();
  element.dataset.figure = figure.id;
  term.textContent = figure.label;
  value.className = "value";
  value.textContent = "–";
  unit.className = "unit";
  unit.textContent = figure.unit ?? "";
  note.className = "about";
  note.textContent = figure.note;
  definition.append(value, unit, note);
  element.append(term, definition, line.element);
  return { element, value, line };
}
