// Small plots in SVG, and the map of blocks on a canvas. Each says in words what it shows.

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 320;
const HEIGHT = 110;
const LEFT = 38;
const BOTTOM = 20;

function make(name, attributes, text) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

/** A round number that is at least `value`. */
function roundUp(value) {
  const unit = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * unit).find((limit) => limit >= value);
}

export function short(value) {
  if (value >= 10000) return `${Math.round(value / 1000)}k`;
  return Number(value.toPrecision(3)).toString();
}

function frame(svg, top, caption) {
  const y = (share) => 8 + (HEIGHT - BOTTOM - 8) * (1 - share);
  for (const share of [0, 0.5, 1]) {
    svg.append(
      make("line", { class: "plot-grid", x1: LEFT, x2: WIDTH, y1: y(share), y2: y(share) }),
      make("text", { x: LEFT - 5, y: y(share) + 4, "text-anchor": "end" }, short(top * share)),
    );
  }
  svg.append(make("text", { x: WIDTH, y: HEIGHT - 5, "text-anchor": "end" }, caption));
  return y;
}

/** Lines over the last minutes: `series` are lists of numbers, the newest last; null is a gap. */
export function drawLines(svg, series, { say }) {
  const values = series.flat().filter((value) => value !== null);
  const top = roundUp(Math.max(...values, 0.001));
  svg.replaceChildren();
  const y = frame(svg, top, "now");
  series.forEach((list, idx) => {
    const x = (i) => LEFT + ((WIDTH - LEFT) * i) / Math.max(1, list.length - 1);
    let path = "";
    list.forEach((value, i) => {
      if (value === null) return;
      const isStart = i === 0 || list[i - 1] === null;
      path += `${isStart ? "M" : "L"}${x(i).toFixed(1)} ${y(value / top).toFixed(1)}`;
    });
    svg.append(make("path", { class: `plot-line ${"ab"[idx]}`, d: path }));
  });
  svg.setAttribute("aria-label", say);
}

/** Points: how deep speculation went (y) at which load (x). */
export function drawDots(svg, points, { xLabel, say }) {
  const right = roundUp(Math.max(...points.map(([x]) => x), 1));
  const top = roundUp(Math.max(...points.map(([, y]) => y), 1));
  svg.replaceChildren();
  const y = frame(svg, top, `${xLabel}, up to ${right}`);
  for (const [load, depth] of points) {
    const x = LEFT + 4 + ((WIDTH - LEFT - 8) * load) / right;
    svg.append(make("circle", { class: "plot-dot", cx: x, cy: y(depth / top), r: 3 }));
  }
  svg.setAttribute("aria-label", say);
}

/** The blocks of all groups, one after the other: a digit for each, as the server gives them. */
export function drawBlocks(canvas, groups) {
  const style = getComputedStyle(document.documentElement);
  const colours = ["--line", "--cached", "--held", "--shared"].map((n) => style.getPropertyValue(n));
  const cells = groups.join("");
  const scale = devicePixelRatio;
  const width = canvas.clientWidth;
  const size = cells.length > 700 ? 7 : 11;
  const perRow = Math.max(1, Math.floor(width / size));
  const height = Math.ceil(cells.length / perRow) * size;
  canvas.width = width * scale;
  canvas.height = height * scale;
  canvas.style.height = `${height}px`;
  const paper = canvas.getContext("2d");
  paper.scale(scale, scale);
  for (let i = 0; i < cells.length; i++) {
    paper.globalAlpha = cells[i] === "0" ? 0.6 : 1;
    paper.fillStyle = colours[cells[i]];
    paper.fillRect((i % perRow) * size, Math.floor(i / perRow) * size, size - 1.5, size - 1.5);
  }
  const count = (digit) => cells.split(digit).length - 1;
  const say = `${count("2")} held, ${count("3")} shared, ${count("1")} cached, ${count("0")} empty`;
  canvas.setAttribute("aria-label", `KV blocks: ${say}`);
  canvas.title = say;
}
