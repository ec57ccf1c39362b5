// How long an answer took and how large it is, in one line.

const REASONS = {
  length: "ended at the most tokens",
  tool_calls: "asks for tools",
  abort: "ended by the server",
};

/** Times and counts of one answer; times are milliseconds of performance.now(). */
export class Statistics {
  #sent = performance.now();
  #first = null;
  #last = null;
  #tokensAtFirst = 0;
  #usage = null;
  reason = null;

  /**
   * A chunk came.
   * @param {object | null} usage up to here
   * @param {boolean} bearsText
   */
  note(usage, bearsText) {
    this.#usage = usage ?? this.#usage;
    if (!bearsText) return;
    this.#last = performance.now();
    if (this.#first !== null) return;
    this.#first = this.#last;
    this.#tokensAtFirst = this.#usage?.completion_tokens ?? 0;
  }

  /** Milliseconds to the first text; null before it. */
  get firstAfter() {
    return this.#first === null ? null : this.#first - this.#sent;
  }

  /** Tokens a second after the first; null where there are too few to tell. */
  get speed() {
    const tokens = (this.#usage?.completion_tokens ?? 0) - this.#tokensAtFirst;
    const seconds = (this.#last - this.#first) / 1000;
    return tokens > 0 && seconds > 0 ? tokens / seconds : null;
  }

  /** The parts of the line. */
  parts() {
    const usage = this.#usage;
    const parts = [];
    if (usage) parts.push(count(usage.completion_tokens, "token"));
    if (this.speed) parts.push(`${short(this.speed)} tok/s`);
    if (this.firstAfter !== null) parts.push(`first after ${milliseconds(this.firstAfter)}`);
    if (usage) parts.push(promptPart(usage));
    const drafted = usage?.completion_tokens_details?.accepted_prediction_tokens;
    if (drafted) parts.push(`${drafted} drafted`);
    if (REASONS[this.reason] || this.reason === "stopped") {
      parts.push(REASONS[this.reason] ?? "stopped");
    }
    return parts;
  }
}

function promptPart(usage) {
  const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
  return `prompt ${usage.prompt_tokens}` + (cached ? ` (${cached} cached)` : "");
}

function count(number, noun) {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}

/** Three digits or so. */
function short(number) {
  return number < 10 ? number.toFixed(1) : Math.round(number).toLocaleString("en");
}

function milliseconds(value) {
  return value < 1000 ? `${Math.round(value)} ms` : `${(value / 1000).toFixed(1)} s`;
}
