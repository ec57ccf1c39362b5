// A line of the last minute's values, without axes: for the shape, beside the number.

const MOST = 60;
const HEIGHT = 32;
const NAMESPACE = "http://www.w3.org/2000/svg";

/** Starts empty; unknown values are gaps. */
export class Sparkline {
  #values = [];
  #area = pathOf("area");
  #line = pathOf("line");

  constructor() {
    this.element = document.createElementNS(NAMESPACE, "svg");
    this.element.setAttribute("viewBox", `0 0 ${MOST - 1} ${HEIGHT}`);
    this.element.setAttribute("preserveAspectRatio", "none");
    this.element.setAttribute("aria-hidden", "true");
    this.element.append(this.#area, this.#line);
  }

  /** @param {number | null} value */
  add(value) {
    this.#values = [...this.#values, value].slice(-MOST);
    const runs = runsOf(this.#points());
    const lines = runs.map((run) => `M${run.map(([x, y]) => `${x} ${y}`).join("L")}`);
    const areas = runs.map((run, index) => `${lines[index]}V${HEIGHT}H${run[0][0]}Z`);
    this.#line.setAttribute("d", lines.join(""));
    this.#area.setAttribute("d", areas.join(""));
  }

  #points() {
    const top = Math.max(...this.#values, 1e-9);
    const left = MOST - this.#values.length;
    const height = (value) => (HEIGHT - 1 - (value / top) * (HEIGHT - 3)).toFixed(2);
    return this.#values.map((value, index) => (value === null ? null : [left + index, height(value)]));
  }
}

/** Points in runs without gaps. */
function runsOf(points) {
  const runs = [[]];
  for (const point of points) {
    if (point) runs.at(-1).push(point);
    else runs.push([]);
  }
  return runs.filter((run) => run.length);
}

function pathOf(name) {
  const path = document.createElementNS(NAMESPACE, "path");
  path.setAttribute("class", name);
  return path;
}
