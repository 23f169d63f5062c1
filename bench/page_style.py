"""How the page looks, in light and in dark. One place for colours: the plots name only what a thing is."""

STYLE = """
:root {
  color-scheme: light dark;
  --paper: #f7f7f4; --card: #ffffff; --ink: #1b2128; --muted: #626b76; --line: #dfe2e5; --grid: #e9ebed;
  --penstock: #0a6fb8; --kafka: #98a1ab; --nats: #2f9e7f; --rabbitmq: #d98032;
  --good: #16794a; --bad: #b3261e; --behind: #cf4a3f; --goal: #1b2128; --tint: #eaf3fa;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #12161b; --card: #1a2027; --ink: #e8ecf0; --muted: #9aa5b1; --line: #2d3640; --grid: #27303a;
    --penstock: #4da9ea; --kafka: #7d8894; --nats: #3fb594; --rabbitmq: #e39a55;
    --good: #5fcf95; --bad: #ff8a80; --behind: #e0655b; --goal: #f4f6f8; --tint: #16293a;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
}
main { max-width: 1080px; margin: 0 auto; padding: 40px 20px 64px; }
h1 { font-size: 34px; line-height: 1.15; letter-spacing: -0.02em; margin: 0 0 8px; text-wrap: balance; }
h2 { font-size: 23px; letter-spacing: -0.01em; margin: 48px 0 4px; }
h3 { font-size: 16px; margin: 0 0 6px; }
svg + h3, details + h3 { margin-top: 22px; }
p { margin: 0 0 12px; max-width: 76ch; }
.lead, .note { color: var(--muted); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(190px, 1fr)); gap: 14px; margin: 24px 0 8px; }
.tile, .card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; }
.tile { padding: 16px 18px; }
.tile b { display: block; font-size: 30px; line-height: 1.15; letter-spacing: -0.02em; }
.tile span { color: var(--muted); font-size: 14px; }
.tile.best { background: var(--tint); border-color: transparent; }
.card { padding: 18px 20px; margin: 14px 0; overflow-x: auto; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 20px; margin: 8px 0 0; padding: 0; }
.legend { color: var(--muted); font-size: 14px; }
.legend li { list-style: none; display: flex; align-items: center; gap: 7px; }
.legend i { width: 13px; height: 13px; border-radius: 3px; display: inline-block; }
.legend i.goal { width: 3px; border-radius: 0; background: var(--goal); }
.legend i.penstock, .legend i.ahead { background: var(--penstock); } .legend i.kafka { background: var(--kafka); }
.legend i.nats { background: var(--nats); } .legend i.rabbitmq { background: var(--rabbitmq); }
.legend i.limit { border: 1px dashed var(--muted); }
.legend i.behind { background: var(--behind); }
svg { display: block; width: 100%; min-width: 760px; height: auto; }
svg text { font-size: 13px; fill: var(--ink); }
svg .muted, svg .axis { fill: var(--muted); font-size: 12px; font-weight: 400; }
svg .small { fill: var(--muted); font-size: 11.5px; }
svg .end { text-anchor: end; } svg .middle { text-anchor: middle; }
svg .label { font-weight: 600; } svg .group { fill: var(--muted); font-weight: 600; font-size: 12px; }
svg .value, svg .strong { font-weight: 650; font-variant-numeric: tabular-nums; }
svg .met { fill: var(--good); font-weight: 600; } svg .missed { fill: var(--bad); font-weight: 600; }
svg .penstock, svg .ahead { fill: var(--penstock); } svg .kafka { fill: var(--kafka); }
svg .nats { fill: var(--nats); } svg .rabbitmq { fill: var(--rabbitmq); } svg .behind { fill: var(--behind); }
svg .stub, svg .machine { fill: none; stroke: var(--muted); stroke-dasharray: 4 3; }
svg .grid { stroke: var(--grid); } svg .rule { stroke: var(--line); }
svg .even { stroke: var(--muted); stroke-width: 1.5; }
svg .goal { stroke: var(--goal); stroke-width: 2.5; }
svg .whisker { stroke: var(--ink); stroke-width: 1.3; fill: none; opacity: 0.65; }
table { border-collapse: collapse; width: 100%; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 5px 7px; border-bottom: 1px solid var(--line); vertical-align: top; }
td small, td.unit { white-space: nowrap; }
td small { display: block; color: var(--muted); font-size: 11px; }
th:first-child, td:first-child, td.text, th.text { text-align: left; }
thead th { color: var(--muted); font-weight: 600; }
td.met { color: var(--good); } td.missed { color: var(--bad); font-weight: 600; }
td.none { color: var(--muted); }
ul.plain { padding-left: 20px; margin: 6px 0; } ul.plain li { margin: 3px 0; }
code { font: 13px/1.5 ui-monospace, "DejaVu Sans Mono", monospace; overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 4px 18px; margin: 0; font-size: 14.5px; }
dt { color: var(--muted); } dd { margin: 0; overflow-wrap: anywhere; }
summary { cursor: pointer; font-weight: 600; margin: 4px 0; }
@media print { .card, .tile { break-inside: avoid; } }
"""
