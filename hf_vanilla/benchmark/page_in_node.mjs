// For engines.py: translates with a page, as main.mjs does, but in node.
//
//     node page_in_node.mjs FOLDER WARM_UP < SOURCES
//
// A line of SOURCES is {"parts": [...], "prefix": "..."}. The first WARM_UP of them are translated once before the clock
// starts. Writes {"seconds": ..., "lists": [[best, second, ...], ...]}.
import { readFile } from 'node:fs/promises';
import { resolve } from 'node:path';
import { text } from 'node:stream/consumers';
import { pathToFileURL } from 'node:url';

const [folder, warmUp] = process.argv.slice(2);
const at = name => new URL(name, `${pathToFileURL(resolve(folder))}/`);
const ort = await import(at('ort.wasm.min.mjs'));
const { Model } = await import(at('model.mjs'));
const { Tokenizer } = await import(at('tokenizer.mjs'));
ort.env.wasm.numThreads = 1;
ort.env.logLevel = 'error';
const [settings, vocabulary] = await Promise.all(
  ['settings.json', 'vocabulary.json'].map(async name => JSON.parse(await readFile(at(name), 'utf8'))));
const model = await Model.load(ort, settings, async name => new Uint8Array(await readFile(at(name))));
const tokenizer = new Tokenizer(vocabulary);

async function best({ parts, prefix }) {
  const all = tokenizer.source(parts, prefix), limit = settings.max_source_length;
  const ids = all.length > limit ? [...all.slice(0, limit - 1), all.at(-1)] : all;
  const found = await model.translate(ids, { num_return_sequences: settings.num_beams }, async () => {});
  return found.map(({ tokens }) => tokenizer.decode(tokens));
}

const sources = (await text(process.stdin)).trimEnd().split('\n').map(line => JSON.parse(line));
for (const source of sources.slice(0, Number(warmUp))) await best(source);
const began = performance.now(), lists = [];
for (const source of sources) lists.push(await best(source));
const seconds = (performance.now() - began) / 1000;
process.stdout.write(JSON.stringify({ seconds, lists }), () => process.exit());
