// A line of the last minute's values, without axes: for the shape, beside the number.

const MOST = 60;
const HEIGHT = 32;
const NAMESPACE = "http://www.w3.org/2000/svg";

/** Starts empty; unknown values are gaps. */
export class Sparkline {
  #values = [];
  #path = document.createElementNS(NAMESPACE, "path");

  constructor() {
    this.element = document.createElementNS(NAMESPACE, "svg");
    this.element.setAttribute("viewBox", `0 0 ${MOST - 1} ${HEIGHT}`);
    this.element.setAttribute("preserveAspectRatio", "none");
    this.element.setAttribute("aria-hidden", "true");
    this.element.append(this.#path);
  }

  /** @param {number | null} value */
  add(value) {
    this.#values = [...this.#values, value].slice(-MOST);
    const top = Math.max(...this.#values, 1e-9);
    const left = MOST - this.#values.length;
    let pen = "M";
    let path = "";
    this.#values.forEach((each, index) => {
      if (each === null) {
        pen = "M";
        return;
      }
      path += `${pen}${left + index} ${(HEIGHT - 1 - (each / top) * (HEIGHT - 3)).toFixed(2)}`;
      pen = "L";
    });
    this.#path.setAttribute("d", path);
  }
}
