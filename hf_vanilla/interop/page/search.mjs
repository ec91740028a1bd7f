// Greedy and beam search with the results of generate(): the same steps as hf_vanilla/inference/onnx_search.py, for one
// source. Scores are added up in float64, of logits in float32.

export async function search(decode, sourceLength, settings) {
  // decode(tokens, parents) reads one more token of each hypothesis, which has grown from the one before of the number
  // in parents, and returns their logits: { data: Float32Array of all rows, width: size of a row }.
  const limit = limitOf(settings, sourceLength), isGreedy = settings.num_beams === 1;
  // Scores of beams count what suppressing and forcing change, greedy ones are those of the model itself.
  const beam = new Beam(settings, limit);
  for (let length = 1; beam.isOpen; length++) {
    const forced = length === limit ? settings.forced_eos_token_id : null;
    if (forced !== null && !isGreedy) { // it costs no probability
      beam.advance(beam.running.map(({ score }, parent) => ({ token: forced, parent, score })), length);
      break;
    }
    const { data, width } = await decode(beam.running.map(found => found.tokens.at(-1) ?? settings.decoder_start_token_id), beam.parents);
    const number = Math.min(width, candidatesOf(settings));
    if (forced !== null) {
      beam.advance([{ token: forced, parent: 0, score: beam.running[0].score + data[forced] - logTotal(data) }], length);
      break;
    }
    const suppressed = suppressedAt(settings, length - 1);
    const candidates = beam.running.flatMap((found, parent) => {
      const row = data.subarray(parent * width, (parent + 1) * width);
      return mostProbable(row, number, suppressed, settings.renormalize_logits && !isGreedy).map(([token, score]) => ({ token, parent, score: found.score + score }));
    });
    candidates.sort((a, b) => b.score - a.score); // stable
    beam.advance(candidates.slice(0, candidatesOf(settings)), length);
  }
  return beam.ended.slice(0, settings.num_return_sequences);
}

class Beam {
  constructor(settings, limit) {
    Object.assign(this, { settings, limit, running: [{ tokens: [], score: 0 }], parents: [0], ended: [], isOpen: true });
  }

  advance(candidates, length) {
    const { settings } = this, width = settings.num_beams;
    let going = [];
    candidates.forEach(({ token, parent, score }, rank) => {
      if (!settings.eos_token_id.includes(token) && length < this.limit) going.push({ token, parent, score });
      else if (rank < width) {
        const tokens = [...this.running[parent].tokens, token];
        this.ended.push({ tokens, score: normalised(score, length, settings) });
      }
    });
    this.ended.sort((a, b) => b.score - a.score);
    this.ended.length = Math.min(this.ended.length, width);
    going = going.slice(0, width);
    this.parents = going.map(({ parent }) => parent);
    this.running = going.map(({ token, parent, score }) => ({ tokens: [...this.running[parent].tokens, token], score }));
    this.isOpen = going.length > 0 && (this.ended.length < width || this.mayImprove(going[0].score, length));
  }

  mayImprove(best, length) {
    const { settings } = this;
    if (settings.early_stopping === true) return false;
    const hopesForMore = settings.early_stopping === 'never' && settings.length_penalty > 0;
    return normalised(best, hopesForMore ? this.limit : length, settings) > this.ended.at(-1).score;
  }
}

export function candidatesOf({ num_beams, eos_token_id }) {
  return num_beams === 1 ? 1 : Math.max(2, 1 + eos_token_id.length) * num_beams;
}

export function normalised(score, length, { length_penalty, length_penalty_type }) {
  return score / (length_penalty_type === 'gnmt' ? (5 + length) / 6 : length) ** length_penalty;
}

function limitOf(settings, sourceLength) {
  // How many new tokens there may be. The start token counts for a length, and the last token is not read.
  const { max_new_tokens, max_length, max_length_beyond_source: beyond, positions, usual_new_tokens } = settings;
  let longest = max_new_tokens === null ? max_length : 1 + max_new_tokens;
  longest ??= beyond === null ? Math.min(1 + usual_new_tokens, positions ?? Infinity) : positions ?? Infinity;
  if (beyond !== null) longest = Math.min(longest, 1 + sourceLength + beyond);
  if (positions !== null) longest = Math.min(longest, positions + 1);
  return Math.max(1, longest - 1);
}

function suppressedAt(settings, length) {
  const { min_length, min_new_tokens } = settings;
  const tokens = new Set(settings.suppress_tokens);
  if (length === 0) settings.begin_suppress_tokens.forEach(token => tokens.add(token));
  if (1 + length < (min_new_tokens === null ? min_length : 1 + min_new_tokens)) settings.eos_token_id.forEach(token => tokens.add(token));
  return tokens;
}

function mostProbable(logits, number, suppressed, renormalizes) {
  // The tokens with the largest logits, best first and of equal ones the first, with their log-probabilities. If asked
  // to, these share the probability of the suppressed ones.
  const allowed = suppressed.size ? logits.slice() : logits;
  suppressed.forEach(token => { if (token >= 0 && token < logits.length) allowed[token] = -Infinity; });
  const total = logTotal(renormalizes ? allowed : logits), best = [];
  for (let token = 0; token < allowed.length; token++) {
    const logit = allowed[token];
    if (logit === -Infinity || (best.length === number && logit <= best.at(-1)[1])) continue;
    let place = best.length;
    while (place > 0 && best[place - 1][1] < logit) place--;
    best.splice(place, 0, [token, logit]);
    if (best.length > number) best.pop();
  }
  return best.map(([token, logit]) => [token, logit - total]);
}

function logTotal(logits) {
  // What to take from logits to have log-probabilities.
  let top = -Infinity, sum = 0;
  for (const logit of logits) if (logit > top) top = logit;
  for (const logit of logits) sum += Math.exp(logit - top);
  if (!Number.isFinite(sum)) throw new Error('The model computed something that is no number.');
  return top + Math.log(sum);
}
