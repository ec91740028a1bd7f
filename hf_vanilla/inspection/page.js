// What is shown, and what changes it: address, buttons, pointer and keys.

const KINDS = { encoder: "source to itself", decoder: "target to itself", cross: "target to source" };
const state = { kind: "", layer: 0, heads: [], row: facts.first.row, words: false, across: false, held: null };
let maps, preview = null, current;

const kindNow = () => facts.kinds[state.kind];
const nameOfHeads = () =>
  !state.heads.length ? "mean of the heads" : `${state.heads.length > 1 ? "mean of heads" : "head"} ${state.heads.map(head => head + 1).join(", ")}`;
const title = () => `Attention of ${KINDS[state.kind]}, layer ${state.layer + 1}, ${nameOfHeads()}`;

function toAddress() {
  const parts = { kind: state.kind, layer: state.layer + 1, head: state.heads.length ? state.heads.map(head => head + 1).join(".") : "mean", row: state.row };
  if (state.words) parts.words = 1;
  if (state.across) parts.across = 1;
  for (const side of ["row", "column"]) if (state.held?.[side] !== undefined) parts[`at-${side}`] = state.held[side] + 1;
  history.replaceState(null, "", `#${new URLSearchParams(parts)}`);
}

function fromAddress() {
  const parts = new URLSearchParams(location.hash.slice(1)), number = name => Number.parseInt(parts.get(name), 10) - 1;
  const kinds = Object.keys(facts.kinds);
  state.kind = [parts.get("kind"), facts.first.kind].find(kind => kinds.includes(kind)) ?? kinds[kinds.length - 1];
  const { layers, heads } = kindNow();
  const isFirst = state.kind === facts.first.kind;
  state.layer = [number("layer"), isFirst ? facts.first.layer : -1].find(layer => layers.includes(layer)) ?? layers[layers.length - 1];
  const chosen = (parts.get("head") ?? "").split(".").map(each => Number.parseInt(each, 10) - 1).filter(head => heads.includes(head));
  const first = isFirst && facts.first.head !== null && heads.includes(facts.first.head) ? [facts.first.head] : [];
  state.heads = parts.has("head") ? [...new Set(chosen)] : first;
  state.row = ["output", "input"].includes(parts.get("row")) ? parts.get("row") : facts.first.row;
  state.words = parts.has("words");
  state.across = parts.has("across");
  const held = { row: number("at-row"), column: number("at-column") };
  for (const side of ["row", "column"]) if (!(held[side] >= 0)) delete held[side];
  state.held = Object.keys(held).length ? held : null;
}

// --- Sentences ---

const quoted = ([text]) => isolated(`“${text}”`);

function sentence(place) {
  const { attention, weighted, effect } = current, { row, column } = place ?? {};
  if (row === undefined && column === undefined) return `${title()}. Point at a token or a cell, or move with the arrow keys.`;
  if (column === undefined) {
    const largest = largestOf(attention, row, 4).map(([key, weight]) => `${quoted(attention.columns[key])} ${percent(weight)}`);
    const rest = 1 - largestOf(attention, row, 4).reduce((sum, [, weight]) => sum + weight, 0);
    return `${quoted(attention.rows[row])} looks at ${largest.join(", ")}; the rest: ${percent(Math.max(0, rest))}.`;
  }
  const { width, height } = attention, weight = at => attention.table[at * width + column];
  if (row === undefined) {
    const best = Array.from({ length: height }, (_, at) => at).sort((a, b) => weight(b) - weight(a)).slice(0, 4);
    return `${quoted(attention.columns[column])} is looked at most by ${best.map(at => `${quoted(attention.rows[at])} with ${percent(weight(at))}`).join(", ")}.`;
  }
  const parts = [`${quoted(attention.rows[row])} looks at ${quoted(attention.columns[column])} with ${percent(weight(row))}; value-weighted ${percent(weighted.table[row * width + column])}`];
  if (facts.largest !== null) parts.push(`the rest of the row, which is not in this page: ${percent(restOf(attention, row))}`);
  if (effect) {
    const value = effect.table[row * width + column], hidden = quoted(facts.partLabels[effect.partOf[column]]);
    parts.push(`without ${hidden} its log-probability is ${Math.abs(value).toFixed(2)} ${value < 0 ? "higher" : "lower"}`);
  }
  return `${parts.join("; ")}.`;
}

function agreementText() {
  if (!facts.agreement.length) return "";
  if (state.heads.length > 1) return "How far attention and effect agree is known of one head, or of the mean of all.";
  const of = facts.agreement[state.layer], both = of[state.heads.length ? state.heads[0] : of.length - 1][state.row];
  if (!both.attention) return "";
  const text = ({ same_top: same, rank_correlation: correlation }) => `the same first part for ${percent(same)} of the target tokens, rank correlation ${correlation.toFixed(2)}`;
  return `Agreement with the effect: attention has ${text(both.attention)}; value-weighted attention has ${text(both.weighted)}.`;
}

// --- Drawing ---

const on = {
  preview(place) { preview = place; mark(); },
  hold(place) {
    const same = state.held && place.row === state.held.row && place.column === state.held.column;
    state.held = same ? null : place;
    mark();
    toAddress();
  },
  key(event, map) {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (step) {
      const now = preview ?? state.held ?? {};
      const next = (value, by, number) => Math.max(0, Math.min(number - 1, value === undefined ? 0 : value + by));
      on.preview({ row: next(now.row, step[0], map.height), column: next(now.column, step[1], map.width) });
    } else if (event.key === "Enter" && preview) on.hold(preview);
    else return;
    event.preventDefault();
  },
};
const views = {
  attention: new Matrix(byId("map"), "Attention", on),
  weighted: new Matrix(byId("weighted"), "Value-weighted attention", on),
  effect: new Matrix(byId("effect"), "Effect of hiding", on),
};

function effectNote() {
  if (state.kind !== "cross") return "Parts of the source are hidden: choose attention of target to source.";
  if (facts.effect === null) return "Not computed: the text is too long, or it has one part only.";
  if (!current.effect) return "The source is one word, whose tokens were hidden one by one: choose tokens in place of whole words.";
  return `How much lower the log-probability of each target ${state.words ? "word" : "token"} is without a part of the source: full colour is ${current.effect.most.toFixed(2)}; the other colour where it is higher without it.`;
}

function mark() {
  const place = preview ?? state.held, isHeld = preview === null && state.held !== null;
  for (const [name, view] of Object.entries(views)) if (current[name]) view.mark(place, isHeld);
  drawLines(byId("lines"), current.attention, place, state.across);
  byId("said").textContent = sentence(place);
}

function withinMap() {
  const { width, height } = current.attention;
  if (state.held && !((state.held.row ?? 0) < height && (state.held.column ?? 0) < width)) state.held = null;
}

function draw() {
  preview = null;
  const hasEffect = state.kind === "cross" && facts.effect !== null && !(state.words && hidesPieces);
  current = { attention: shown(maps, state, "attention"), weighted: shown(maps, state, "weighted"), effect: hasEffect ? effectShown(state) : null };
  withinMap();
  byId("effect").hidden = !hasEffect;
  byId("effect-note").textContent = effectNote();
  for (const [name, view] of Object.entries(views)) if (current[name]) view.draw(current[name], current[name].most);
  byId("agreement").textContent = state.kind === "cross" ? agreementText() : "";
  byId("weighted-note").textContent = facts.largest === null ? "" : `, of the ${facts.largest} weights of each row that are in this page`;
  byId("lines-note").textContent = `From ${facts.kinds[state.kind].columns === "source" ? "source" : "target"} tokens to those that look at them. Weights under 2 % are not drawn.`
    + (facts.largest === null ? "" : ` This page has the ${facts.largest} largest weights of each row; the rest is named.`);
  byId("caption").textContent = `${title()}: the 5 largest weights of each row`;
  drawTable(current.attention, 5);
  drawControls();
  drawCard();
  mark();
  toAddress();
}

function press(element, isPressed) { element.setAttribute("aria-pressed", isPressed); }

function drawControls() {
  for (const button of byId("kinds").children) press(button, button.dataset.kind === state.kind);
  byId("layer").value = state.layer;
  byId("row").value = state.row;
  byId("row").disabled = state.kind === "encoder";
  press(byId("words"), state.words);
  press(byId("turn"), state.across);
  for (const button of document.querySelectorAll("[data-head]")) {
    const head = Number(button.dataset.head), isLayer = !button.dataset.layer || Number(button.dataset.layer) === state.layer;
    press(button, isLayer && (head < 0 ? !state.heads.length : state.heads.includes(head)));
  }
}

function drawCard() {
  const cards = facts.cards[state.kind], head = state.heads[0];
  if (state.heads.length !== 1 || !cards) {
    const text = kindNow().heads.length ? "Choose one head to see what it does." : "This page has only the mean of the heads.";
    byId("card").replaceChildren(make("p", {}, cards ? text : "Nothing is known of the heads."));
    return;
  }
  const { roles, figures } = cards[state.layer][head];
  const rows = Object.entries(figures).map(([name, value]) =>
    make("tr", { title: facts.figures[name] }, make("th", { scope: "row" }, name.replaceAll("_", " ")), make("td", {}, value === null ? "not known" : String(value))));
  byId("card").replaceChildren(
    make("p", {}, make("strong", {}, `${KINDS[state.kind]}, layer ${state.layer + 1}, head ${head + 1}: ${roles.length ? roles.join(", ") : "no role found"}`)),
    make("p", { className: "note" }, "Over this one pair of texts. Roles and thresholds are those of the literature."),
    make("div", { className: "scroll", tabIndex: 0, role: "region", ariaLabel: "Statistics of this head" }, make("table", {}, make("tbody", {}, ...rows))));
}

function choose(changes, isAdded = false) {
  if (changes.heads && isAdded && changes.heads.length) {
    const [head] = changes.heads;
    changes.heads = state.heads.includes(head) ? state.heads.filter(each => each !== head) : [...state.heads, head].sort((a, b) => a - b);
  }
  const isOther = changes.kind !== undefined && changes.kind !== state.kind;
  Object.assign(state, changes);
  if (isOther || changes.words !== undefined || changes.row !== undefined) state.held = null;
  if (isOther) {
    const { layers, heads } = kindNow();
    if (!layers.includes(state.layer)) state.layer = layers[layers.length - 1];
    state.heads = state.heads.filter(head => heads.includes(head));
    drawChoices();
  }
  draw();
}

// The buttons that depend on the kind.
function drawChoices() {
  const { layers, heads } = kindNow();
  byId("layer").replaceChildren(...layers.map(layer => make("option", { value: layer }, `${layer + 1}`)));
  const button = head => {
    const found = make("button", { type: "button" }, head < 0 ? "mean" : `${head + 1}`);
    found.dataset.head = head;
    found.setAttribute("aria-label", head < 0 ? "mean of the heads" : `head ${head + 1}`);
    found.addEventListener("click", event => choose({ heads: head < 0 ? [] : [head] }, event.shiftKey || event.ctrlKey));
    return found;
  };
  byId("heads").replaceChildren(...[-1, ...heads].map(button));
  drawOverview();
}

function drawOverview() {
  const { layers, heads, rows, columns } = kindNow(), figure = byId("figure").value, all = [...heads, -1];
  const values = (facts.cards[state.kind] ?? []).flat().map(card => Math.abs(card.figures[figure] ?? 0)), most = Math.max(1e-9, ...values);
  const cell = (layer, head, number) => {
    const found = make("button", { type: "button", tabIndex: -1 });
    Object.assign(found.dataset, { layer, head });
    const value = figure && head >= 0 ? facts.cards[state.kind][layer][head].figures[figure] : null;
    const name = `layer ${layer + 1}, ${head < 0 ? "mean of the heads" : `head ${head + 1}`}`;
    if (!figure) found.append(thumbnail(maps.codes(state.kind, layer, number), sizeOf(columns), sizeOf(rows)));
    else if (value !== null) {
      found.append(make("span", { className: "value" }, String(value)));
      found.style.background = `color-mix(in srgb, var(--accent) ${Math.round((45 * Math.abs(value)) / most)}%, transparent)`;
    }
    found.setAttribute("aria-label", value === null ? name : `${name}, ${figure.replaceAll("_", " ")} ${value}`);
    found.title = found.getAttribute("aria-label");
    found.addEventListener("click", event => choose({ layer, heads: head < 0 ? [] : [head] }, (event.shiftKey || event.ctrlKey) && layer === state.layer));
    return make("td", {}, found);
  };
  const header = make("tr", {}, make("td"), ...all.map(head => make("th", { scope: "col" }, head < 0 ? "mean" : `${head + 1}`)));
  const lines = layers.map(layer => make("tr", {}, make("th", { scope: "row" }, `layer ${layer + 1}`), ...all.map((head, number) => cell(layer, head, number))));
  byId("overview").replaceChildren(make("table", {}, make("tbody", {}, header, ...lines)));
  (byId("overview").querySelector(`[data-layer="${state.layer}"]`) ?? byId("overview").querySelector("button")).tabIndex = 0;
}

// --- Keys ---

function overviewKey(event) {
  const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
  if (!step || !event.target.dataset.layer) return;
  const buttons = [...byId("overview").querySelectorAll("button")], width = kindNow().heads.length + 1;
  const place = buttons.indexOf(event.target), column = (place % width) + step[1];
  const next = column < 0 || column >= width ? undefined : buttons[place + step[0] * width + step[1]];
  event.preventDefault();
  if (!next) return;
  event.target.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

function linesKey(event) {
  const along = state.across ? { ArrowLeft: -1, ArrowRight: 1 } : { ArrowUp: -1, ArrowDown: 1 };
  const other = state.across ? ["ArrowUp", "ArrowDown"] : ["ArrowLeft", "ArrowRight"];
  const now = preview ?? state.held ?? {}, side = now.row === undefined && now.column !== undefined ? "column" : "row";
  const number = { row: current.attention.height, column: current.attention.width };
  const at = (of, index) => ({ [of]: Math.max(0, Math.min(number[of] - 1, index)) });
  if (along[event.key]) on.preview(at(side, now[side] === undefined ? 0 : now[side] + along[event.key]));
  else if (other.includes(event.key)) on.preview(at(event.key === other[0] ? "column" : "row", now[side] ?? 0));
  else if (event.key === "Enter" && preview) on.hold(preview);
  else return;
  event.preventDefault();
}

function pageKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("select, input, dialog")) return;
  const { layers, heads } = kindNow(), kinds = Object.keys(facts.kinds);
  const moved = (list, value, by) => list[Math.max(0, Math.min(list.length - 1, list.indexOf(value) + by))];
  const headed = by => { const head = moved([-1, ...heads], state.heads.length ? state.heads[0] : -1, by); choose({ heads: head < 0 ? [] : [head] }); };
  const keys = {
    1: () => kinds.includes("encoder") && choose({ kind: "encoder" }),
    2: () => kinds.includes("decoder") && choose({ kind: "decoder" }),
    3: () => kinds.includes("cross") && choose({ kind: "cross" }),
    PageUp: () => choose({ layer: moved(layers, state.layer, -1) }),
    PageDown: () => choose({ layer: moved(layers, state.layer, 1) }),
    "[": () => headed(-1),
    "]": () => headed(1),
    w: () => choose({ words: !state.words }),
    r: () => state.kind !== "encoder" && choose({ row: state.row === "output" ? "input" : "output" }),
    t: () => choose({ across: !state.across }),
    Escape: () => { state.held = preview = null; mark(); toAddress(); },
    "?": () => byId("keys").showModal(),
  };
  if (!Object.hasOwn(keys, event.key)) return;
  event.preventDefault();
  keys[event.key]();
}

function listen() {
  for (const kind of Object.keys(facts.kinds)) {
    const button = make("button", { type: "button" }, KINDS[kind]);
    button.dataset.kind = kind;
    button.addEventListener("click", () => choose({ kind }));
    byId("kinds").append(button);
  }
  byId("figure").parentElement.hidden = !kindNow().heads.length; // statistics are of single heads
  for (const name of Object.keys(facts.figures)) byId("figure").append(make("option", { value: name }, name.replaceAll("_", " ")));
  byId("figure").addEventListener("change", () => { drawOverview(); drawControls(); });
  byId("layer").addEventListener("change", () => choose({ layer: Number(byId("layer").value) }));
  byId("row").addEventListener("change", () => choose({ row: byId("row").value }));
  byId("words").addEventListener("click", () => choose({ words: !state.words }));
  byId("turn").addEventListener("click", () => choose({ across: !state.across }));
  byId("help").addEventListener("click", () => byId("keys").showModal());
  byId("svg").addEventListener("click", () => save(svgOf(current.attention, title()), "attention.svg", "image/svg+xml"));
  byId("png").addEventListener("click", async () => save(await pngOf(current.attention), "attention.png", "image/png"));
  byId("tsv").addEventListener("click", () => save(tsvOf(current.attention), "attention.tsv", "text/tab-separated-values"));
  const token = event => event.target.closest?.("text[data-side]"), placeOf = found => ({ [found.dataset.side]: Number(found.dataset.index) });
  let over = null;
  byId("lines").addEventListener("pointermove", event => {
    const found = token(event), name = found && `${found.dataset.side} ${found.dataset.index}`;
    if (name !== over) on.preview(found ? placeOf(found) : null);
    over = name;
  });
  byId("lines").addEventListener("pointerleave", () => { over = null; on.preview(null); });
  byId("lines").addEventListener("click", event => token(event) && on.hold(placeOf(token(event))));
  byId("lines").addEventListener("keydown", linesKey);
  byId("overview").addEventListener("keydown", overviewKey);
  document.addEventListener("keydown", pageKey);
  const again = () => { colours.clear(); drawOverview(); draw(); };
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  window.addEventListener("beforeprint", again);
  window.addEventListener("hashchange", () => { fromAddress(); drawChoices(); draw(); });
  let waiting;
  window.addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(draw, 100); });
}

async function begin() {
  if (!("DecompressionStream" in window)) { byId("old").hidden = false; return; }
  maps = new Maps(await unpacked());
  byId("panel").hidden = false;
  fromAddress();
  listen();
  drawChoices();
  draw();
  document.body.dataset.ready = "1";
}
begin();
