// For test_page_search.py: runs search.mjs for what comes in, a line of JSON each, and asks there for logits.
import { createInterface } from 'node:readline';

const { search } = await import(process.argv[2]);
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const heard = async () => JSON.parse((await lines.next()).value);
const say = what => process.stdout.write(JSON.stringify(what) + '\n');

for (let task; (task = await heard()); ) {
  let rows = [[]];
  const decode = async (tokens, parents) => {
    rows = parents.map((parent, i) => [...rows[parent], tokens[i]]);
    say({ rows });
    const { logits, width } = await heard();
    return { data: Float32Array.from(logits, value => value ?? NaN), width };
  };
  try {
    say({ found: await search(decode, task.length, task.settings) });
  } catch (error) {
    say({ error: error.message });
  }
}
process.exit();
