// Parses Prometheus's text format: sums of series by name, without the operator's prefix.

const SAMPLE = /^([^\s{]+)(?:\{.*\})? (\S+)/;

/** What a scrape says at one moment. */
export class Scrape {
  #sums = new Map();

  /**
   * @param {string} text of /metrics
   * @param {number} time in seconds
   */
  constructor(text, time) {
    this.time = time;
    for (const line of text.split("\n")) {
      const [, name, value] = SAMPLE.exec(line) ?? [];
      if (name && !line.startsWith("#")) {
        this.#sums.set(name, (this.#sums.get(name) ?? 0) + Number(value));
      }
    }
  }

  /** The sum of all series of a name, given without prefix; null where there are none. */
  get(name) {
    for (const [full, sum] of this.#sums) if (full.endsWith(name)) return sum;
    return null;
  }

  /** How fast a counter grew since another scrape, a second; null where that is unknown. */
  rate(name, before) {
    const gained = this.gained(name, before);
    return gained === null ? null : gained / (this.time - before.time);
  }

  /** How much a counter grew since another scrape; null without one, or after a restart. */
  gained(name, before) {
    const [now, then] = [this.get(name), before?.get(name) ?? null];
    return now === null || then === null || now < then ? null : now - then;
  }
}
