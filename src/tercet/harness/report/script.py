"""The page's script: tables sort and filter, marks show their record on hover or touch.

Opened with `#selftest`, the page tries itself out and says so in <html data-selftest>.
"""

SCRIPT = """
'use strict';
function compareKeys(a, b) {
  const x = parseFloat(a), y = parseFloat(b), p = isNaN(x), q = isNaN(y);
  if (a !== '' && b !== '' && !p && !q) return x - y;
  if (a === '' || b === '') return (a === '') - (b === '');
  return a.localeCompare(b, undefined, {numeric: true});
}
function matchesAll(text, words) {
  const low = text.toLowerCase();
  return words.toLowerCase().split(/\\s+/).every(word => low.includes(word));
}
function keyOf(cell) {
  return cell.hasAttribute('data-v') ? cell.getAttribute('data-v') : cell.textContent.trim();
}
function sortTable(table, column) {
  const heads = [...table.tHead.rows[0].cells], head = heads[column];
  const down = head.getAttribute('aria-sort') === 'ascending';
  heads.forEach(each => each.removeAttribute('aria-sort'));
  head.setAttribute('aria-sort', down ? 'descending' : 'ascending');
  const body = table.tBodies[0], rows = [...body.rows];
  rows.sort((r, s) => {
    const a = keyOf(r.cells[column]), b = keyOf(s.cells[column]);
    const order = compareKeys(a, b);
    return a === '' || b === '' ? order : down ? -order : order;
  });
  rows.forEach(row => body.append(row));
}
function filterTable(section) {
  const words = section.querySelector('input').value;
  const chosen = [...section.querySelectorAll('select')].filter(each => each.value);
  let shown = 0;
  for (const row of section.querySelector('table').tBodies[0].rows) {
    row.hidden = !matchesAll(row.textContent, words) ||
      chosen.some(each => row.cells[+each.dataset.column].textContent.trim() !== each.value);
    shown += !row.hidden;
  }
  section.querySelector('.count').textContent = shown + ' rows';
}
function start() {
  for (const section of document.querySelectorAll('.sortable')) {
    const table = section.querySelector('table');
    [...table.tHead.rows[0].cells].forEach((head, i) =>
      head.querySelector('button').addEventListener('click', () => sortTable(table, i)));
    section.querySelectorAll('input, select').forEach(each =>
      each.addEventListener('input', () => filterTable(section)));
    filterTable(section);
  }
  for (const figure of document.querySelectorAll('figure')) {
    const out = figure.querySelector('output');
    figure.querySelectorAll('.mark').forEach(mark => {
      const tell = () => { out.textContent = mark.querySelector('title').textContent; };
      for (const kind of ['click', 'focus', 'mouseenter']) mark.addEventListener(kind, tell);
    });
  }
}
function selfTest() {
  for (const section of document.querySelectorAll('.sortable')) {
    const table = section.querySelector('table'), body = table.tBodies[0];
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, i) => {
      for (const sign of [1, -1]) {
        head.querySelector('button').click();
        const keys = [...body.rows].map(row => keyOf(row.cells[i])).filter(key => key !== '');
        for (let j = 1; j < keys.length; j++)
          if (sign * compareKeys(keys[j - 1], keys[j]) > 0)
            return fail('column ' + head.textContent + ' is not sorted');
      }
    });
    const input = section.querySelector('input'), all = body.rows.length;
    const visible = () => [...body.rows].filter(row => row.offsetHeight > 0).length;
    const type = words => { input.value = words; input.dispatchEvent(new Event('input')); };
    type('no such words'); if (visible() !== 0) return fail('the filter lets rows through');
    const word = body.rows[0].cells[0].textContent.trim();
    type(word); if (visible() === 0) return fail('the filter hides what it should show');
    type(''); if (visible() !== all) return fail('an empty filter hides rows');
  }
  const mark = document.querySelector('.mark');
  if (mark) {
    const out = mark.closest('figure').querySelector('output'), before = out.textContent;
    mark.dispatchEvent(new Event('click'));
    if (out.textContent === before)
      return fail('a mark does not tell what it is');
  }
  const width = document.documentElement.scrollWidth;
  if (width > window.innerWidth) return fail('the page is ' + width + ' wide');
  if (!document.documentElement.dataset.selftest) document.documentElement.dataset.selftest = 'ok';
}
function fail(what) { document.documentElement.dataset.selftest ||= what; }
if (typeof document !== 'undefined') {
  start();
  if (location.hash === '#selftest') selfTest();
}
"""
