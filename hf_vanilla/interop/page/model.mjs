// The two graphs in onnxruntime-web: what of them a search and the picture of the attention need.

import { search } from './search.mjs';

export class Model {
  constructor(ort, settings, encoder, decoder) {
    Object.assign(this, { ort, settings, encoder, decoder });
    const kinds = ['key', 'value'];
    this.layers = Array.from({ length: settings.decoder_layers }, (_, i) => kinds.map(kind => `${i}.${kind}`)).flat();
  }

  static async load(ort, settings, bytesOf) {
    const options = { executionProviders: ['wasm'] };
    const sessions = ['encoder.onnx', 'decoder.onnx'].map(async name =>
      ort.InferenceSession.create(await bytesOf(name), options));
    return new Model(ort, settings, ...(await Promise.all(sessions)));
  }

  async translate(ids, choices, breathe) {
    // The best targets for token ids, best first: { tokens, score }.
    const source = await this.encode(ids);
    let past = null;
    const decode = async (tokens, parents) => {
      await breathe();
      const wanted = ['logits', ...this.layers.map(layer => `present.${layer}`)];
      const found = await this.decoder.run({ ...source, ...this.past(past, parents), ...this.tokens(tokens, tokens.length) }, wanted);
      past = found;
      return { data: found.logits.data, width: found.logits.dims[2] };
    };
    return search(decode, ids.length, { ...this.settings, ...choices });
  }

  async attention(ids, tokens) {
    // (T, S): how much each token of a target looks at each of the source.
    const { layer, head, row } = this.settings.attention;
    const name = `attention.${layer}`, read = [this.settings.decoder_start_token_id, ...tokens];
    const feeds = { ...(await this.encode(ids)), ...this.past(null, [0]), ...this.tokens(read, 1) };
    const { data, dims } = (await this.decoder.run(feeds, [name]))[name];
    const [, heads, targets, sources] = dims;
    const chosen = head === null ? Array.from({ length: heads }, (_, i) => i) : [head];
    const at = (i, t, s) => data[(i * targets + t) * sources + s];
    return tokens.map((_, t) => ids.map((_, s) =>
      chosen.reduce((sum, i) => sum + at(i, row === 'output' ? t : t + 1, s), 0) / chosen.length));
  }

  async encode(ids) {
    const mask = this.integers(ids.map(() => 1), [1, ids.length]);
    const wanted = this.layers.map(layer => `source.${layer}`);
    const found = await this.encoder.run({ input_ids: this.integers(ids, [1, ids.length]), attention_mask: mask }, wanted);
    return { attention_mask: mask, ...found };
  }

  tokens(tokens, rows) {
    return { input_ids: this.integers(tokens, [rows, tokens.length / rows]) };
  }

  past(present, parents) {
    // Keys and values of the tokens before, of hypotheses that have grown from these ones.
    const { num_heads, d_kv, d_v } = this.settings;
    return Object.fromEntries(this.layers.map(layer => {
      const empty = [parents.length, num_heads, 0, layer.endsWith('key') ? d_kv : d_v];
      if (!present) return [`past.${layer}`, new this.ort.Tensor('float32', new Float32Array(0), empty)];
      const { data, dims } = present[`present.${layer}`], size = data.length / dims[0];
      const chosen = new Float32Array(size * parents.length);
      parents.forEach((parent, i) => chosen.set(data.subarray(parent * size, (parent + 1) * size), i * size));
      return [`past.${layer}`, new this.ort.Tensor('float32', chosen, [parents.length, ...dims.slice(1)])];
    }));
  }

  integers(values, dims) {
    return new this.ort.Tensor('int64', BigInt64Array.from(values, BigInt), dims);
  }
}
