"""The page's look: one column, light or dark as the reader's system is, readable at 390 pixels."""

STYLE = """
:root { color-scheme: light dark; --ink: #1c2024; --soft: #667079; --line: #dfe3e8; --page: #fff;
  --panel: #f6f8fa; --accent: #0b62c4; --bad: #b42318; --good: #1a7f37;
  --c0: #0b62c4; --c1: #c4500b; --c2: #1a7f37; --c3: #8e3ac4; --c4: #b42368; --c5: #0e8a8a;
  --c6: #8a6d0e; --c7: #55606b; --c8: #5b7f0a; --c9: #5a4fcf; --c10: #a0522d;
  --c11: #00796b; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ec; --soft: #98a2ac; --line: #31373d;
  --page: #14171a; --panel: #1c2024; --accent: #6cb0ff; --bad: #ff8a80; --good: #6fdc8c;
  --c0: #6cb0ff; --c1: #ffa26c; --c2: #6fdc8c; --c3: #cf9bff; --c4: #ff8ab8; --c5: #5fd6d6;
  --c6: #e0c25a; --c7: #aab4bd; --c8: #b5d957; --c9: #a9a2ff; --c10: #dfa184;
  --c11: #5fc9b8; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 78rem; background: var(--page); color: var(--ink);
  font: 15px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.4rem; margin: 0 0 .25rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p { margin: .25rem 0 .75rem; } .soft { color: var(--soft); }
figure { margin: 0; background: var(--panel); border-radius: 8px; padding: .5rem; }
svg { display: block; width: 100%; height: auto; } svg text { fill: var(--soft); font-size: 13px; }
svg .grid { stroke: var(--line); } svg .roof { stroke: var(--ink); fill: none; stroke-width: 1.5; }
svg .mark { cursor: pointer; stroke-width: 1.6; fill-opacity: .8; }
svg .mark:focus { outline: none; stroke: var(--ink); stroke-width: 3; }
svg .peer { fill: var(--panel); fill-opacity: .6; } svg .trend { fill: none; stroke-width: 1.6; }
.c0 { --c: var(--c0); } .c1 { --c: var(--c1); } .c2 { --c: var(--c2); } .c3 { --c: var(--c3); }
.c4 { --c: var(--c4); } .c5 { --c: var(--c5); } .c6 { --c: var(--c6); } .c7 { --c: var(--c7); }
.c8 { --c: var(--c8); } .c9 { --c: var(--c9); } .c10 { --c: var(--c10); } .c11 { --c: var(--c11); }
svg .mark, svg .trend { stroke: var(--c); } svg .own { fill: var(--c); }
.key { display: flex; flex-wrap: wrap; gap: .25rem 1rem; padding: .25rem .5rem; font-size: 13px; }
.key i { display: inline-block; width: .7em; height: .7em; border-radius: 50%; margin-right: .4em;
  background: var(--c); } .key i.hollow { background: none; border: 2px solid var(--soft); }
output { display: block; min-height: 3em; padding: .25rem .5rem; font-size: 13px; }
.tools { display: flex; flex-wrap: wrap; gap: .5rem; margin: .5rem 0; }
.tools input, .tools select { font: inherit; padding: .4rem .6rem; border: 1px solid var(--line);
  border-radius: 6px; background: var(--page); color: var(--ink); min-width: 0; }
.tools input { flex: 1 1 14rem; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 8px; }
table { border-collapse: collapse; width: 100%; font-size: 13px;
  font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .6rem; text-align: left; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
th button { all: unset; cursor: pointer; font-weight: 600; }
th button:focus-visible { outline: 2px solid var(--accent); }
th[aria-sort=ascending] button::after { content: " \\25b4"; }
th[aria-sort=descending] button::after { content: " \\25be"; }
thead th { background: var(--panel); } td.n, th.n { text-align: right; }
tbody tr:last-child td { border-bottom: 0; } td.reason { white-space: normal; min-width: 16rem; }
th:first-child, td:first-child { position: sticky; left: 0; background: var(--page); }
thead th:first-child { background: var(--panel); }
.bar { display: inline-block; width: 3.5rem; height: .55em; margin-right: .5em; border-radius: 3px;
  background: linear-gradient(to right, var(--accent) var(--p), var(--line) var(--p)); }
.bad { color: var(--bad); } .good { color: var(--good); }
@media (max-width: 40rem) { body { padding: .6rem; } .wide { display: none; }
  th, td { padding: .35rem .45rem; } .bar { width: 2rem; } svg text { font-size: 22px; } }
"""
