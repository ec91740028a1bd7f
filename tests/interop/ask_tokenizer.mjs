// For test_page_tokenizer.py: a vocabulary, sources and ids come in as JSON; ids, texts and labels go out.
import { readFileSync } from 'node:fs';

const { Tokenizer } = await import(process.argv[2]);
const { vocabulary, sources, targets } = JSON.parse(readFileSync(0, 'utf8'));
const tokenizer = new Tokenizer(vocabulary);
const ids = sources.map(([parts, prefix]) => tokenizer.source(parts, prefix));
const texts = targets.map(each => tokenizer.decode(each));
const labels = vocabulary.tokens.map((_, id) => tokenizer.label(id));
process.stdout.write(JSON.stringify({ ids, texts, labels }));
