// The attention of a target to its source as a table, which also readers of screens can follow.

const MOST = Number(document.getElementById('results').dataset.mostDrawn); // tokens of either side
const RIGHT_TO_LEFT = /[\p{Script=Arabic}\p{Script=Hebrew}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}]/u;

export function picture(weights, sources, targets) {
  if (sources.length > MOST || targets.length > MOST) {
    return element('p', { textContent: `With more than ${MOST} tokens there is no picture.` });
  }
  const table = element('table', { dir: sources.some(label => RIGHT_TO_LEFT.test(label)) ? 'rtl' : 'ltr' });
  const head = table.createTHead().insertRow(), body = table.createTBody();
  head.append(element('td'), ...sources.map(label => header(label, 'col')));
  targets.forEach((label, t) => {
    const row = body.insertRow();
    row.append(header(label, 'row'));
    weights[t].forEach((weight, s) => {
      const percent = Math.round(100 * weight);
      const cell = element('td', { title: `${label} ← ${sources[s]}: ${percent} %` });
      cell.append(element('span', { textContent: percent }));
      cell.style.setProperty('--weight', `${percent}%`);
      row.append(cell);
    });
  });
  return table;
}

function header(label, scope) {
  const cell = element('th', { scope });
  cell.append(element('span', { textContent: label, dir: 'auto' }));
  return cell;
}

export function element(name, properties = {}) {
  return Object.assign(document.createElement(name), properties);
}
