// Translates in the browser: what is typed goes through tokenizer, model and search.

import * as ort from './ort.wasm.min.mjs';
import { got, start } from './main.mjs';
import { Model } from './model.mjs';
import { Tokenizer } from './tokenizer.mjs';

const MOST_MILLISECONDS = 40; // without letting the browser react to its user

async function load() {
  ort.env.wasm.numThreads = 1; // more would need headers that plain servers do not send
  ort.env.wasm.wasmPaths = new URL('./', import.meta.url).href;
  ort.env.logLevel = 'error';
  const [settings, vocabulary] = await Promise.all(['settings.json', 'vocabulary.json'].map(async name => (await got(name)).json()));
  const bytesOf = async name => new Uint8Array(await (await got(name)).arrayBuffer());
  const model = await Model.load(ort, settings, bytesOf), tokenizer = new Tokenizer(vocabulary);
  return (parts, prefix, width, signal) => translate(tokenizer, model, parts, prefix, width, signal);
}

async function translate(tokenizer, model, parts, prefix, width, signal) {
  const all = tokenizer.source(parts, prefix), limit = model.settings.max_source_length;
  const ids = all.length > limit ? [...all.slice(0, limit - 1), all.at(-1)] : all;
  const note = all.length > limit ? ` Of a source with ${all.length} tokens only the first ${limit} were used.` : '';
  const found = await model.translate(ids, { num_beams: width, num_return_sequences: width }, breathing(signal));
  const labels = read => read.map(id => tokenizer.label(id));
  return {
    found: found.map(({ tokens, score }) => ({
      text: tokenizer.decode(tokens),
      score,
      attention: async () => ({ weights: await model.attention(ids, tokens), sources: labels(ids), targets: labels(tokens) }),
    })),
    note,
  };
}

function breathing(signal) {
  // Lets the browser react now and then, and ends a search that is not wanted any more.
  let last = performance.now();
  return async () => {
    if (performance.now() - last < MOST_MILLISECONDS) return;
    await new Promise(resolve => setTimeout(resolve));
    signal.throwIfAborted();
    last = performance.now();
  };
}

start(load);
