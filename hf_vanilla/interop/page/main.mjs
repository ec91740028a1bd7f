// The page: what is typed goes through tokenizer, model and search, and what is found is shown.

import * as ort from './ort.wasm.min.mjs';
import { Model } from './model.mjs';
import { element, picture } from './picture.mjs';
import { isBlank, Tokenizer } from './tokenizer.mjs';

const MOST_MILLISECONDS = 40; // without letting the browser react to its user
const one = id => document.getElementById(id);
const areas = [...document.querySelectorAll('textarea.source')];
let choices = 0; // groups of translations to choose from
let call = 0; // of the last translation that was asked for: those before stop

const say = text => (one('status').textContent = text);

async function start() {
  say('Loading the engine and the model…');
  const began = performance.now();
  ort.env.wasm.numThreads = 1; // more would need headers that plain servers do not send
  ort.env.wasm.wasmPaths = new URL('./', import.meta.url).href;
  ort.env.logLevel = 'error';
  const [settings, vocabulary] = await Promise.all(['settings.json', 'vocabulary.json'].map(async name => (await got(name)).json()));
  const bytesOf = async name => new Uint8Array(await (await got(name)).arrayBuffer());
  const model = await Model.load(ort, settings, bytesOf);
  const tokenizer = new Tokenizer(vocabulary);
  one('form').addEventListener('submit', event => {
    event.preventDefault();
    run(tokenizer, model);
  });
  one('form').addEventListener('keydown', event => {
    if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) one('form').requestSubmit();
  });
  one('translate').disabled = false;
  say('Ready.');
  document.body.dataset.ready = Math.round(performance.now() - began);
}

async function got(name) {
  const answer = await fetch(new URL(name, import.meta.url));
  if (!answer.ok) throw new Error(`${name} cannot be loaded (${answer.status})`);
  return answer;
}

function lines() {
  // Of each line its parts, one from each text area.
  const parts = areas.map(area => area.value.split(/\r?\n/));
  const number = Math.max(...parts.map(each => each.length));
  return Array.from({ length: number }, (_, i) => parts.map(each => each[i] ?? '')).filter(each => !each.every(isBlank));
}

async function run(tokenizer, model) {
  try {
    await show(tokenizer, model, lines());
  } catch (error) {
    console.error(error);
    say(`This could not be translated: ${error.message}`);
  }
}

async function show(tokenizer, model, sources) {
  const own = ++call, results = one('results'), width = Number(one('width').value);
  results.replaceChildren();
  if (!sources.length) return say('There is no text.');
  say('Translating…');
  const began = performance.now();
  const breathe = breathing(() => own === call);
  let longest = '', best;
  for (const parts of sources) {
    const all = tokenizer.source(parts, one('prefix')?.value ?? ''), limit = model.settings.max_source_length;
    const ids = all.length > limit ? [...all.slice(0, limit - 1), all.at(-1)] : all;
    if (all.length > limit) longest = ` Of a source with ${all.length} tokens only the first ${limit} were used.`;
    const found = await model.translate(ids, { num_beams: width, num_return_sequences: width }, breathe);
    if (own !== call) return;
    best = tokenizer.decode(found[0].tokens);
    results.append(await resultOf(tokenizer, model, parts, ids, found, sources.length === 1));
  }
  const seconds = ((performance.now() - began) / 1000).toFixed(2);
  say(`${sources.length === 1 ? best : `${sources.length} lines`} — translated in ${seconds} seconds.${longest}`);
}

function breathing(isWanted) {
  // Waits for the browser now and then. A search that is not wanted any more ends here, and says nothing.
  let last = performance.now();
  return async () => {
    if (performance.now() - last < MOST_MILLISECONDS) return;
    await new Promise(resolve => setTimeout(resolve));
    if (!isWanted()) await new Promise(() => {});
    last = performance.now();
  };
}

async function resultOf(tokenizer, model, parts, ids, found, isOnly) {
  const result = one('result').content.cloneNode(true).firstElementChild, name = `choice-${++choices}`;
  result.querySelector('.read').textContent = parts.join(' · ');
  const place = result.querySelector('.picture'), details = result.querySelector('details');
  let chosen = found[0], drawn = null;
  const draw = async () => {
    if (!details.open || drawn === chosen) return;
    drawn = chosen;
    const { tokens } = chosen, label = id => tokenizer.label(id);
    const weights = await model.attention(ids, tokens);
    if (drawn.tokens !== tokens) return;
    const table = picture(weights, ids.map(label), tokens.map(label));
    place.dir = table.dir; // so that its first column is in sight where it is wider than the page
    place.replaceChildren(table);
  };
  found.forEach((each, rank) => {
    const input = element('input', { type: 'radio', name, checked: rank === 0 });
    input.addEventListener('change', () => { chosen = each; draw(); });
    const label = element('label');
    label.append(input, element('bdi', { className: 'text', textContent: tokenizer.decode(each.tokens) || '(nothing)', dir: 'auto' }),
      element('span', { className: 'score', textContent: each.score.toFixed(3) }));
    result.querySelector('fieldset').append(label);
  });
  details.addEventListener('toggle', draw);
  details.open = isOnly;
  await draw();
  return result;
}

start().catch(error => {
  console.error(error);
  say(`The page cannot start: ${error.message}`);
});
