// The views: matrices, lines, all heads, the table, and files of what is shown.

const byId = id => document.getElementById(id);
const percent = value => `${(100 * value).toFixed(1)} %`;
const MANY = 60; // tokens whose labels can be read

function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

function drawn(tag, attributes, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

// [red, green, blue] of a style's colour, whatever notation the browser gives it in.
const colours = new Map();
function rgbOf(name) {
  if (!colours.has(name)) colours.set(name, readColour(name));
  return colours.get(name);
}

function readColour(name) {
  const probe = make("span", { hidden: true });
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const canvas = make("canvas", { width: 1, height: 1 }), context = canvas.getContext("2d");
  context.fillStyle = getComputedStyle(probe).color;
  context.fillRect(0, 0, 1, 1);
  probe.remove();
  return context.getImageData(0, 0, 1, 1).data.slice(0, 3);
}

// Strength of a colour: the square root, so that small weights can be seen. The scale of the page shows the same.
const strength = value => Math.sqrt(Math.min(1, Math.abs(value)));

function paint(canvas, map, most = 1) {
  canvas.width = map.width;
  canvas.height = map.height;
  const context = canvas.getContext("2d"), image = context.createImageData(map.width, map.height);
  const both = [rgbOf("--accent"), rgbOf("--against")];
  map.table.forEach((value, place) => {
    image.data.set(both[value < 0 ? 1 : 0], 4 * place);
    image.data[4 * place + 3] = 255 * strength(value / most);
  });
  context.putImageData(image, 0, 0);
}

// A dot stands for white space in front of a token.
const marked = ([text, , space]) => `${space ? "·" : ""}${text}`;

function labelled(token, index, size) {
  const [text, special] = token;
  const label = make("span", { className: special ? "special" : "", title: text }, make("bdi", { dir: "auto" }, marked(token)));
  label.dataset.index = index;
  label.style[size[0]] = `${size[1]}px`;
  return label;
}

class Matrix {
  constructor(box, name, on) {
    this.box = box;
    this.on = on;
    this.name = name;
    this.canvas = make("canvas");
    this.hairs = [make("div", { className: "hair" }), make("div", { className: "hair" })];
    this.cells = make("div", { className: "cells", tabIndex: 0, role: "application" }, this.canvas, ...this.hairs);
    this.cells.setAttribute("aria-label", `${name}: arrow keys move from cell to cell, Enter holds`);
    const place = event => {
      const from = this.canvas.getBoundingClientRect();
      const at = (value, number, length) => Math.max(0, Math.min(number - 1, Math.floor((value / length) * number)));
      return {
        row: at(event.clientY - from.top, this.map.height, from.height),
        column: at(event.clientX - from.left, this.map.width, from.width),
      };
    };
    this.cells.addEventListener("pointermove", event => on.preview(place(event)));
    this.cells.addEventListener("pointerleave", () => on.preview(null));
    this.cells.addEventListener("click", event => on.hold(place(event)));
    this.cells.addEventListener("keydown", event => on.key(event, this.map));
  }

  draw(map, most) {
    this.map = map;
    const isMany = Math.max(map.width, map.height) > MANY;
    const free = this.box.clientWidth - (isMany ? 4 : 110);
    this.cell = Math.min(28, isMany ? Math.max(1, free / map.width) : Math.max(15, Math.floor(free / map.width)));
    paint(this.canvas, map, most);
    this.canvas.style.width = `${this.cell * map.width}px`;
    this.canvas.style.height = `${this.cell * map.height}px`;
    const sides = isMany ? [[], []] : [map.columns.slice(0, map.width), map.rows.slice(0, map.height)];
    const labels = [["columns", "width"], ["rows", "height"]].map(([name, size], side) =>
      make("div", { className: `labels ${name}` }, ...sides[side].map((label, index) => labelled(label, index, [size, this.cell]))));
    this.columns = labels[0];
    this.rows = labels[1];
    const focused = document.activeElement === this.cells;
    this.box.replaceChildren(make("div", { className: "grid" }, ...labels, this.cells));
    if (focused) this.cells.focus();
    for (const [side, key] of [[this.rows, "row"], [this.columns, "column"]]) {
      const found = event => event.target.closest("[data-index]");
      side.addEventListener("pointerover", event => found(event) && this.on.preview({ [key]: +found(event).dataset.index }));
      side.addEventListener("pointerleave", () => this.on.preview(null));
      side.addEventListener("click", event => found(event) && this.on.hold({ [key]: +found(event).dataset.index }));
    }
  }

  mark(place, held) {
    const { row, column } = place || {};
    const bands = [[row, 0, row * this.cell, this.map.width * this.cell, this.cell], [column, column * this.cell, 0, this.cell, this.map.height * this.cell]];
    bands.forEach(([index, left, top, width, height], number) => {
      const hair = this.hairs[number];
      hair.hidden = index === undefined;
      hair.classList.toggle("held", held);
      if (!hair.hidden) Object.assign(hair.style, { left: `${left}px`, top: `${top}px`, width: `${width}px`, height: `${height}px` });
    });
    for (const [side, index] of [[this.rows, row], [this.columns, column]]) {
      side.querySelector(".held")?.classList.remove("held");
      side.children[index]?.classList.add("held");
    }
  }
}

const cutText = text => (Array.from(text).length > 16 ? `${Array.from(text).slice(0, 15).join("")}…` : text);

// In these marks a text that is written from right to left turns nothing beside it.
const isolated = text => `\u2068${text}\u2069`;

// Lines from the columns of a map, which stand first, to its rows.
function drawLines(box, map, place, across) {
  const step = across ? 26 : 22, room = 130, gap = across ? 150 : Math.max(90, Math.min(260, box.clientWidth - 2 * room - 8));
  const length = 16 + step * Math.max(map.width, map.height), depth = 2 * room + gap;
  const svg = drawn("svg", across ? { width: length, height: depth } : { width: depth, height: length });
  const at = (side, index) => {
    const along = 8 + step * (index + 0.5), deep = side === "column" ? room : room + gap;
    return across ? [along, deep] : [deep, along];
  };
  const buckets = Array.from({ length: 10 }, () => "");
  const curve = (row, column) => {
    const [x, y] = at("column", column), [u, v] = at("row", row), bend = 0.4 * gap;
    return across ? `M${x} ${y}C${x} ${y + bend} ${u} ${v - bend} ${u} ${v}` : `M${x} ${y}C${x + bend} ${y} ${u - bend} ${v} ${u} ${v}`;
  };
  const chosen = place && (place.row !== undefined || place.column !== undefined) ? place : null;
  const bold = [];
  map.table.forEach((value, number) => {
    const row = (number / map.width) | 0, column = number % map.width;
    const isChosen = chosen && (chosen.row === undefined ? chosen.column === column : chosen.row === row);
    if (isChosen && value >= 0.005) bold.push([row, column, value]);
    else if (value >= 0.02) buckets[Math.min(9, Math.floor(10 * value))] += curve(row, column);
  });
  const all = drawn("g", chosen ? { class: "dim" } : {});
  buckets.forEach((path, number) => path && all.append(drawn("path", { d: path, "stroke-opacity": Math.sqrt((number + 0.5) / 10), "stroke-width": 0.5 + number / 4 })));
  svg.append(all);
  bold.forEach(([row, column, value]) => svg.append(drawn("path", { d: curve(row, column), "stroke-opacity": strength(value), "stroke-width": 1 + 4 * value })));
  for (const [side, labels, number] of [["column", map.columns, map.width], ["row", map.rows, map.height]]) {
    labels.slice(0, number).forEach((token, index) => {
      const special = token[1];
      const [x, y] = at(side, index), first = side === "column", sign = first ? -6 : 6;
      const where = across ? { x, y: y + sign, transform: `rotate(90 ${x} ${y + sign})`, "dominant-baseline": "middle" } : { x: x + sign, y, "dominant-baseline": "middle" };
      const marks = [special ? "special" : "", chosen && chosen[side] === index ? "held" : ""].join(" ").trim();
      const label = drawn("text", { ...where, "text-anchor": first ? "end" : "start", class: marks }, isolated(cutText(marked(token))));
      const amount = bold.find(([row, column]) => chosen[side] === undefined && (first ? column === index : row === index) && bold.length);
      if (amount && amount[2] >= 0.02) label.textContent += ` ${Math.round(100 * amount[2])} %`;
      label.dataset.side = side;
      label.dataset.index = index;
      svg.append(label);
    });
  }
  box.replaceChildren(svg);
}

// A small picture: the largest weight of what each of its pixels covers.
function thumbnail(codes, width, height) {
  const size = 32, canvas = make("canvas", { width: Math.min(size, width), height: Math.min(size, height) });
  const context = canvas.getContext("2d"), image = context.createImageData(canvas.width, canvas.height);
  const colour = rgbOf("--accent");
  for (let place = 0; place < codes.length; place++) {
    const code = codes[place];
    if (!code) continue;
    const row = Math.floor((((place / width) | 0) * canvas.height) / height), column = Math.floor(((place % width) * canvas.width) / width);
    const pixel = 4 * (row * canvas.width + column);
    if (code > image.data[pixel + 3]) image.data.set([...colour, code], pixel);
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

function drawTable(map, shownKeys) {
  const cell = ([column, weight]) => make("td", {}, make("bdi", { dir: "auto" }, map.columns[column][0]), ` ${percent(weight)}`);
  const rows = map.rows.slice(0, map.height).map(([text], row) => {
    const largest = largestOf(map, row, shownKeys);
    const rest = 1 - largest.reduce((sum, [, weight]) => sum + weight, 0);
    const missing = Array.from({ length: shownKeys - largest.length }, () => make("td"));
    return make("tr", {}, make("th", { scope: "row" }, make("bdi", { dir: "auto" }, text)), ...largest.map(cell), ...missing, make("td", {}, percent(Math.max(0, rest))));
  });
  byId("table").replaceChildren(...rows);
}

// --- Files ---

// The shapes of a picture of the map: rectangles [x, y, size, strength], and texts [x, y, text, turned].
function shapesOf(map) {
  const cell = 22, widest = labels => 16 + 8.5 * Math.min(16, labels.reduce((most, [text]) => Math.max(most, Array.from(text).length), 1));
  const left = widest(map.rows), top = widest(map.columns);
  const cells = [];
  map.table.forEach((value, place) => {
    if (value >= 0.001) cells.push([left + cell * (place % map.width), top + cell * ((place / map.width) | 0), cell, strength(value)]);
  });
  const rows = map.rows.slice(0, map.height).map(([text], row) => [left - 6, top + cell * (row + 0.5), cutText(text), false]);
  const columns = map.columns.slice(0, map.width).map(([text], column) => [left + cell * (column + 0.5), top - 6, cutText(text), true]);
  return { width: left + cell * map.width + 8, height: top + cell * map.height + 8, left, top, cell, cells, texts: [...rows, ...columns] };
}

function svgOf(map, title) {
  const { width, height, left, top, cells, texts } = shapesOf(map);
  const svg = drawn("svg", { xmlns: "http://www.w3.org/2000/svg", width, height, viewBox: `0 0 ${width} ${height}`, "font-family": "system-ui, sans-serif", "font-size": 14 });
  svg.append(drawn("title", {}, title), drawn("rect", { width, height, fill: "#fff" }));
  for (const [x, y, size, opacity] of cells) svg.append(drawn("rect", { x, y, width: size, height: size, fill: "#12508f", "fill-opacity": opacity.toFixed(3) }));
  svg.append(drawn("rect", { x: left, y: top, width: width - left - 8, height: height - top - 8, fill: "none", stroke: "#565f6b" }));
  for (const [x, y, text, turned] of texts) {
    const turn = turned ? { transform: `rotate(-90 ${x} ${y})`, "text-anchor": "start" } : { "text-anchor": "end" };
    svg.append(drawn("text", { x, y, "dominant-baseline": "middle", ...turn }, text));
  }
  return new XMLSerializer().serializeToString(svg);
}

function pngOf(map) {
  const { width, height, left, top, cells, texts } = shapesOf(map);
  const scale = Math.max(1, Math.min(2, 8000 / Math.max(width, height))), canvas = make("canvas", { width: width * scale, height: height * scale });
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  context.fillStyle = "#fff";
  context.fillRect(0, 0, width, height);
  for (const [x, y, size, opacity] of cells) {
    context.fillStyle = `rgba(18, 80, 143, ${opacity})`;
    context.fillRect(x, y, size, size);
  }
  context.strokeStyle = "#565f6b";
  context.strokeRect(left, top, width - left - 8, height - top - 8);
  Object.assign(context, { fillStyle: "#1c1f24", font: "14px system-ui, sans-serif", textBaseline: "middle" });
  for (const [x, y, text, turned] of texts) {
    context.save();
    context.translate(x, y);
    if (turned) context.rotate(-Math.PI / 2);
    context.textAlign = turned ? "left" : "right";
    context.fillText(text, 0, 0);
    context.restore();
  }
  return new Promise(done => canvas.toBlob(done, "image/png"));
}

// Weights that are not in this page are empty, and a last column has their sum.
function tsvOf(map) {
  const plain = ([text]) => text.replace(/[\t\r\n]/g, " "), isWhole = facts.largest === null;
  const cell = value => (isWhole || value > 0 ? value.toFixed(4) : "");
  const rows = map.rows.slice(0, map.height).map((label, row) =>
    [plain(label), ...Array.from(map.table.subarray(row * map.width, (row + 1) * map.width), cell), ...(isWhole ? [] : [restOf(map, row).toFixed(4)])]);
  return [["", ...map.columns.slice(0, map.width).map(plain), ...(isWhole ? [] : ["the rest"])], ...rows].map(cells => cells.join("\t")).join("\n") + "\n";
}

function save(content, name, type) {
  const url = URL.createObjectURL(new Blob([content], { type }));
  make("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}
