// Text to token ids and back, as hf_vanilla/data/tokenizer.py does it with the tokenizers library: byte-pair encoding
// over bytes, characters, and words. Regular expressions name Unicode's properties, because JavaScript's \s and \d are
// others than those of that library.

const SPACE = '\\p{White_Space}';
const PIECES = new RegExp(
  `'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^${SPACE}\\p{L}\\p{N}]+|${SPACE}+(?!\\P{White_Space})|${SPACE}+`, 'gu');
const DIGITS = /\p{N}|\P{N}+/gu;
const WORDS = /\P{White_Space}+/gu;
const TAG = /^<[^<>\p{White_Space}\x1c-\x1f]+>$/u; // as Python's \s, to which four more characters are white space
const LONE_SURROGATES = /\p{Surrogate}/gu;
const BYTE = /^<0x([0-9A-F]{2})>$/;
const MARK = ' '; // begins the names of looked-up tokens among byte pairs and words
const MOST_CACHED = 20_000;

const utf8 = new TextEncoder();
const byteOf = new Map(); // the character that stands for a byte in the names of tokens
const characterOf = [];
for (let byte = 0, others = 256; byte < 256; byte++) {
  const isPrinted = (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
  characterOf[byte] = String.fromCodePoint(isPrinted ? byte : others++);
  byteOf.set(characterOf[byte], byte);
}
const inBytes = text => Array.from(utf8.encode(text), byte => characterOf[byte]).join('');

export class Tokenizer {
  constructor(saved) {
    // What hf_vanilla/interop/page_tokenizer.py writes: tokens in the order of their ids, merges as pairs of ids.
    Object.assign(this, saved);
    this.ids = new Map(this.tokens.map((token, id) => [token, id]));
    this.special = new Set(this.special_ids);
    this.reserved = new Set(this.reserved);
    this.ranks = new Map();
    for (let i = 0; i < this.merges.length; i += 2) {
      const pair = this.keyOf(this.merges[i], this.merges[i + 1]);
      this.ranks.set(pair, [i, this.ids.get(this.tokens[this.merges[i]] + this.tokens[this.merges[i + 1]])]);
    }
    this.cache = new Map();
  }

  source(parts, prefix = '') {
    // The ids of a source in one or several parts, with <eos>, cut to its longest length.
    const ids = [];
    if (TAG.test(prefix)) {
      ids.push(this.lookedUp(prefix));
      prefix = '';
    }
    parts.forEach((part, number) => {
      if (number) ids.push(this.sep);
      const separator = this.columns.source[number] ?? null, before = number ? '' : prefix;
      part = part.replace(LONE_SURROGATES, '\ufffd');
      if (separator === null) ids.push(...this.encode(before + part));
      else {
        if (before) ids.push(...this.encode(before));
        for (const symbol of cut(part, separator)) ids.push(...this.symbol(symbol));
      }
    });
    ids.push(this.eos);
    return ids;
  }

  encode(text) {
    text = text.normalize('NFC');
    if (this.lowercase) text = Array.from(text, character => character.toLowerCase()).join(''); // a final sigma, too
    if (this.kind === 'bpe') {
      if (text) text = ' ' + text;
      return (text.match(DIGITS) ?? []).flatMap(part => part.match(PIECES) ?? []).flatMap(piece => this.bytePairs(piece));
    }
    if (this.kind === 'character') return Array.from(text).flatMap(character => this.character(character));
    for (const [written, split] of this.split) text = text.replaceAll(written, () => split);
    return (text.match(WORDS) ?? []).map(word => this.ids.get(word) ?? this.unk);
  }

  symbol(symbol) {
    // A token of its own, or else spelt: neither lower-cased nor with a space in front as text has it.
    const id = this.reserved.has(symbol) ? undefined : this.lookedUp(symbol);
    if (id !== undefined) return [id];
    if (this.kind === 'word') return [this.unk];
    if (this.kind === 'character') return Array.from(symbol).flatMap(character => this.character(character));
    return symbol.match(DIGITS).flatMap(part => part.match(PIECES)).flatMap(piece => this.bytePairs(piece));
  }

  lookedUp(text) {
    return this.ids.get({ bpe: () => MARK + inBytes(text), word: () => MARK + text, character: () => text }[this.kind]());
  }

  character(character) {
    const id = this.ids.get(character);
    return id === undefined ? Array.from(utf8.encode(character), byte => this.ids.get(byteName(byte))) : [id];
  }

  bytePairs(piece) {
    const found = this.cache.get(piece);
    if (found) return found;
    const ids = Array.from(inBytes(piece), character => this.ids.get(character));
    for (;;) {
      let best = Infinity, place = -1, merged;
      for (let i = 0; i + 1 < ids.length; i++) {
        const [rank, id] = this.ranks.get(this.keyOf(ids[i], ids[i + 1])) ?? [Infinity];
        if (rank < best) [best, place, merged] = [rank, i, id];
      }
      if (place < 0) break;
      ids.splice(place, 2, merged);
    }
    if (this.cache.size < MOST_CACHED) this.cache.set(piece, ids);
    return ids;
  }

  keyOf(first, second) {
    return first * this.tokens.length + second;
  }

  decode(ids) {
    const names = ids.filter(id => !this.special.has(id)).map(id => this.tokens[id] ?? '');
    if (this.kind === 'bpe') return this.withoutFirst(decoded(names.map(name => name.replaceAll(MARK, ''))));
    if (this.kind === 'character') return this.withoutFirst(withBytes(names));
    if (this.columns.target === null) return names.join(' ');
    return this.withoutFirst(names.map(name => (name.startsWith(MARK) ? name.slice(1) : ' ' + name)).join(''));
  }

  withoutFirst(text) {
    const first = this.without_first.find(beginning => text.startsWith(beginning));
    return first === undefined ? text : text.slice(first.length);
  }

  label(id) {
    // What to show for a token by itself.
    const name = this.tokens[id] ?? '?';
    if (this.special.has(id)) return name;
    const text = this.kind === 'bpe' ? decoded([name.replaceAll(MARK, '')]) : name;
    return text.includes('\ufffd') ? hexOf(name) : visible(text);
  }
}

function cut(text, separator) {
  separator = separator.normalize('NFC');
  return text.normalize('NFC').split(separator).map(symbol => separator + symbol);
}

function byteName(byte) {
  return `<0x${byte.toString(16).toUpperCase().padStart(2, '0')}>`;
}

function decoded(names) {
  // Bytes to text. A name with other characters stands for itself.
  const bytes = names.flatMap(name => {
    const characters = Array.from(name);
    return characters.every(each => byteOf.has(each)) ? characters.map(each => byteOf.get(each)) : [...utf8.encode(name)];
  });
  return new TextDecoder('utf-8', { ignoreBOM: true }).decode(Uint8Array.from(bytes));
}

function withBytes(names) {
  // Characters, and runs of bytes: if these are no text, a replacement character for each.
  let text = '', run = [];
  const flush = () => {
    try {
      text += new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(Uint8Array.from(run));
    } catch {
      text += '\ufffd'.repeat(run.length);
    }
    run = [];
  };
  for (const name of names) {
    const byte = BYTE.exec(name);
    if (byte) run.push(parseInt(byte[1], 16));
    else {
      flush();
      text += name;
    }
  }
  flush();
  return text;
}

function visible(text) {
  if (/[^\p{C}\p{Z}]/u.test(text)) return text.trim();
  if (/^ *$/.test(text)) return '␣';
  return Array.from(text, each => 'U+' + each.codePointAt(0).toString(16).toUpperCase().padStart(4, '0')).join(' ');
}

function hexOf(name) {
  return Array.from(name, each => (byteOf.get(each) ?? 0).toString(16).toUpperCase().padStart(2, '0')).join(' ');
}
