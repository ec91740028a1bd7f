// The page: what is typed goes to what translates, and what is found is shown.

import { element, picture } from './picture.mjs';

const one = id => document.getElementById(id);
const areas = [...document.querySelectorAll('textarea.source')];
let choices = 0; // groups of translations to choose from
let last = new AbortController(); // of the last call: those before have stopped

const say = text => (one('status').textContent = text);
const isBlank = text => !/[^\p{White_Space}\x1c-\x1f]/u.test(text); // as Python's str.isspace

export async function start(load) {
  // `load` gives what translates. That takes the parts of a source, a prefix, how many translations are wanted and a
  // signal that says when they are not wanted any more, and gives { found, note }. Each that is found, best first, has a
  // text, perhaps a score, and perhaps an attention, which gives { weights, sources, targets }.
  try {
    say('Loading…');
    const began = performance.now(), translate = await load();
    one('form').addEventListener('submit', event => {
      event.preventDefault();
      run(translate);
    });
    one('form').addEventListener('keydown', event => {
      if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) one('form').requestSubmit();
    });
    one('translate').disabled = false;
    say('Ready.');
    document.body.dataset.ready = Math.round(performance.now() - began);
  } catch (error) {
    console.error(error);
    say(`The page cannot start: ${error.message}`);
  }
}

export async function got(name, options) {
  const answer = await fetch(new URL(name, import.meta.url), options).catch(() => {
    throw new Error(`${name}: the server does not answer`);
  });
  if (!answer.ok) throw new Error((await reason(answer)) ?? `${name} cannot be loaded (${answer.status})`);
  return answer;
}

async function reason(answer) {
  // What a server says is wrong.
  try {
    return (await answer.json()).error;
  } catch {
    return undefined;
  }
}

function lines() {
  // Of each line its parts, one from each text area.
  const parts = areas.map(area => area.value.split(/\r?\n/));
  const number = Math.max(...parts.map(each => each.length));
  return Array.from({ length: number }, (_, i) => parts.map(each => each[i] ?? '')).filter(each => !each.every(isBlank));
}

async function run(translate) {
  last.abort();
  const { signal } = (last = new AbortController());
  try {
    await show(translate, lines(), signal);
  } catch (error) {
    if (signal.aborted) return;
    console.error(error);
    say(`This could not be translated: ${error.message}`);
  }
}

async function show(translate, sources, signal) {
  const results = one('results'), width = Number(one('width').value);
  results.replaceChildren();
  if (!sources.length) return say('There is no text.');
  say('Translating…');
  const began = performance.now();
  let best, note = '';
  for (const parts of sources) {
    const answer = await translate(parts, one('prefix')?.value ?? '', width, signal);
    if (signal.aborted) return;
    best = answer.found[0].text;
    note = answer.note || note;
    results.append(await resultOf(parts, answer.found, sources.length === 1));
    if (signal.aborted) return;
  }
  const seconds = ((performance.now() - began) / 1000).toFixed(2);
  say(`${sources.length === 1 ? best : `${sources.length} lines`} — translated in ${seconds} seconds.${note}`);
}

async function resultOf(parts, found, isOnly) {
  const result = one('result').content.cloneNode(true).firstElementChild, name = `choice-${++choices}`;
  const read = result.querySelector('.read'), place = result.querySelector('.picture');
  const details = result.querySelector('details'), lang = one('results').dataset.lang ?? '';
  read.textContent = parts.join(' · ');
  read.lang = areas[0].lang;
  let chosen = found[0], drawn = null;
  const draw = async () => {
    if (!details.open || drawn === chosen) return;
    const drawing = (drawn = chosen), { weights, sources, targets } = await drawing.attention();
    if (drawn !== drawing) return;
    const table = picture(weights, sources, targets);
    place.dir = table.dir; // so that its first column is in sight where it is wider than the page
    place.replaceChildren(table);
  };
  found.forEach((each, rank) => {
    const input = element('input', { type: 'radio', name, checked: rank === 0 });
    input.addEventListener('change', () => { chosen = each; draw(); });
    const label = element('label');
    label.append(input, element('bdi', { className: 'text', textContent: each.text || '(nothing)', dir: 'auto', lang }),
      element('span', { className: 'score', textContent: each.score?.toFixed(3) ?? '' }));
    result.querySelector('fieldset').append(label);
  });
  if (!found[0].attention) {
    details.remove();
    return result;
  }
  details.addEventListener('toggle', draw);
  details.open = isOnly;
  await draw();
  return result;
}
