// Translates on the server that the page comes from, in LibreTranslate's form.

import { got, start } from './main.mjs';

async function load() {
  const { language } = await (await got('frontend/settings')).json();
  return (parts, prefix, width, signal) => translate(language, parts, width, signal);
}

async function translate(language, parts, width, signal) {
  const asked = {
    q: parts.map(part => part.replaceAll('\t', ' ')).join('\t'),
    source: language.source.code,
    target: language.target.code,
    alternatives: width - 1,
    attention: true,
  };
  const options = { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(asked), signal };
  const { translatedText, alternatives = [], scores = [], attention } = await (await got('translate', options)).json();
  return {
    found: [translatedText, ...alternatives].map((text, i) => ({
      text,
      score: scores[i],
      attention: attention?.[i] && (async () => attention[i]),
    })),
  };
}

start(load);
