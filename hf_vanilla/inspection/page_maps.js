"use strict";
// The maps: from packed bytes to shares of rows, of tokens or of whole words.

const facts = JSON.parse(document.getElementById("facts").textContent);
const sizeOf = side => facts.tokens[side].length;

async function unpacked() {
  const text = document.getElementById("data").textContent.trim();
  const bytes = Uint8Array.from(atob(text), each => each.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

class Maps {
  constructor(bytes) {
    this.bytes = bytes;
    this.starts = new Map();
    this.kept = new Map();
    let start = 0;
    for (const [kind, { layers, heads, rows, columns }] of Object.entries(facts.kinds)) {
      const size = sizeOf(rows) * (facts.largest === null ? sizeOf(columns) : 3 * facts.largest);
      for (const layer of layers) {
        this.starts.set(`${kind} ${layer}`, [start, size]);
        start += (heads.length + 2) * size;
      }
    }
    for (const [kind, { layers, heads, columns }] of Object.entries(facts.kinds)) {
      for (const layer of layers) {
        this.starts.set(`norms ${kind} ${layer}`, [start, sizeOf(columns)]);
        start += heads.length * sizeOf(columns);
      }
    }
  }

  // The codes of one map, row by row. Behind the heads come their mean and, value-weighted, all of them together.
  codes(kind, layer, number) {
    const name = `${kind} ${layer} ${number}`;
    if (!this.kept.has(name)) {
      if (this.kept.size > 40) this.kept.clear();
      this.kept.set(name, this.unpack(kind, layer, number));
    }
    return this.kept.get(name);
  }

  unpack(kind, layer, number) {
    const { rows, columns } = facts.kinds[kind];
    const [first, size] = this.starts.get(`${kind} ${layer}`);
    const bytes = this.bytes.subarray(first + number * size, first + (number + 1) * size);
    if (facts.largest === null) return bytes;
    const [queries, keys] = [sizeOf(rows), sizeOf(columns)];
    const plane = queries * facts.largest;
    const codes = new Uint8Array(queries * keys);
    for (let row = 0; row < queries; row++) {
      for (let place = row, key = 0; place < plane; place += queries) {
        key += bytes[place] + 256 * bytes[plane + place];
        const code = bytes[2 * plane + place];
        if (code) codes[row * keys + key] = code;
      }
    }
    return codes;
  }

  // Weights of a head or, of several, their mean; of none, the mean of all. `what`: attention or weighted.
  weights(kind, layer, heads, what) {
    const { heads: all, columns } = facts.kinds[kind];
    if (!heads.length) return valuesOf(this.codes(kind, layer, all.length + (what === "weighted" ? 1 : 0)));
    const total = new Float32Array(this.codes(kind, layer, 0).length);
    const keys = sizeOf(columns);
    const [start] = this.starts.get(`norms ${kind} ${layer}`);
    for (const head of heads) {
      const number = all.indexOf(head);
      const values = valuesOf(this.codes(kind, layer, number));
      const norms = valuesOf(this.bytes.subarray(start + number * keys, start + (number + 1) * keys));
      for (let place = 0; place < values.length; place++) {
        total[place] += values[place] * (what === "weighted" ? norms[place % keys] : 1 / heads.length);
      }
    }
    return total;
  }
}

const valuesOf = codes => Float32Array.from(codes, code => (code / 255) ** 2);

// What stands on a side: of tokens, or of the words that are made of them.
function sideOf(side, words, shift = 0) {
  const labels = words ? facts.words[side].labels : facts.tokens[side];
  const of = words ? facts.words[side].of : labels.map((_, place) => place);
  const kept = shift ? of.slice(0, -shift) : of;
  return { of: kept, labels: labels.slice(0, kept.length ? kept[kept.length - 1] + 1 : 0) };
}

// A map as it is shown: sums over the keys and means over the queries of a word. Its rows are shifted if they are to
// be those that read a target token.
function tableOf(values, rows, columns, keys, shift) {
  const width = columns.labels.length, height = rows.labels.length;
  const table = new Float32Array(width * height), counts = new Float32Array(height);
  rows.of.forEach((row, query) => {
    counts[row] += 1;
    for (let key = 0; key < keys; key++) table[row * width + columns.of[key]] += values[(query + shift) * keys + key];
  });
  return { table: table.map((value, place) => value / counts[(place / width) | 0]), width, height };
}

function shown(maps, state, what) {
  const kind = facts.kinds[state.kind];
  const shift = state.kind !== "encoder" && state.row === "input" ? 1 : 0;
  const rows = sideOf(kind.rows, state.words, shift), columns = sideOf(kind.columns, state.words);
  const values = maps.weights(state.kind, state.layer, state.heads, what);
  const found = tableOf(values, rows, columns, sizeOf(kind.columns), shift);
  asShares(found, what === "weighted");
  return { ...found, rows: rows.labels, columns: columns.labels };
}

// Weights that were rounded to bytes may add up to a little more than 1.
function asShares({ table, width, height }, isAlways) {
  for (let row = 0; row < height; row++) {
    const part = table.subarray(row * width, (row + 1) * width);
    const sum = part.reduce((total, value) => total + value, 0);
    if (sum > (isAlways ? 0 : 1)) part.forEach((value, place) => { part[place] = value / sum; });
  }
}

// Whether the parts that were hidden are pieces of a word: then it is not known what a whole word does.
const hidesPieces = facts.partLabels.length > facts.words.source.labels.length;

// How much less probable each target token is without a part of the source, and each target word: the sum over its
// tokens, as their log-probabilities add up. In columns like those of the map.
function effectShown(state) {
  const shift = state.row === "input" ? 1 : 0;
  const rows = sideOf("target", state.words, shift), columns = sideOf("source", state.words);
  const parts = facts.parts, width = columns.labels.length;
  const partOf = columns.labels.map((_, column) => parts[columns.of.indexOf(column)]);
  const table = new Float32Array(width * rows.labels.length);
  rows.of.forEach((row, query) => {
    partOf.forEach((part, column) => { table[row * width + column] += facts.effect[query][part]; });
  });
  const most = table.reduce((largest, value) => Math.max(largest, Math.abs(value)), 1e-9);
  return { table, width, height: rows.labels.length, rows: rows.labels, columns: columns.labels, partOf, most };
}

const restOf = (map, row) =>
  Math.max(0, 1 - map.table.subarray(row * map.width, (row + 1) * map.width).reduce((sum, value) => sum + value, 0));

// The largest weights of a row: [column, weight].
function largestOf(map, row, number) {
  const each = Array.from(map.table.subarray(row * map.width, (row + 1) * map.width), (value, column) => [column, value]);
  return each.filter(([, value]) => value > 0).sort((a, b) => b[1] - a[1] || a[0] - b[0]).slice(0, number);
}
