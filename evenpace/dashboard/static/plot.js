// One chart: drawn by uPlot, with a legend that is text and the numbers as a table.
import uPlot from "./vendor/uplot.js";
import { html, useEffect, useRef, useState } from "./lib.js";
import { Square } from "./marks.js";
import { darkMode, fill, ink, line, shade } from "./palette.js";

const HEIGHT = 190; // pixels
const FAR = 6; // times as high as nearly all others: cut
const ROWS = 8; // of the table of numbers
const SHOWN = 16; // entries of a legend

// `lines`: [{ name, values, line: number of a worker's colour | shade: of no worker's | part: of its time, faint?: true }].
// `band`: [upper, lower], indices of lines. Lines with a `part` are stacked, the first at the bottom, a bar for each point.
export function Plot({ title, note, iterations, lines, band, format }) {
  const holder = useRef(null);
  const plot = useRef(null);
  const [at, setAt] = useState(null); // the point that the cursor is at
  const [dark, setDark] = useState(darkMode.matches);
  const shape = JSON.stringify([lines.map((one) => [one.name, one.line, one.shade]), band, dark]);

  useEffect(() => {
    const turned = () => setDark(darkMode.matches);
    darkMode.addEventListener("change", turned);
    return () => darkMode.removeEventListener("change", turned);
  }, []);

  useEffect(() => {
    const place = holder.current; // null again by the time that this effect is undone
    const made = new uPlot(settings(place, lines, band, format, setAt), data(iterations, lines), place);
    plot.current = made;
    const fit = new ResizeObserver(() => made.setSize({ width: place.clientWidth, height: HEIGHT }));
    fit.observe(place);
    return () => {
      fit.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [shape]);

  useEffect(() => plot.current?.setData(data(iterations, lines)), [iterations, lines]);

  const last = iterations.length - 1;
  const { cut, highest } = ceiling(data(iterations, lines).slice(1));
  const point = at !== null && at <= last ? at : last;
  return html`<figure class="chart">
    <figcaption><div><h3>${title}</h3><p class="note">${note}${
      highest > cut && `; cut, the highest is ${format(highest)}`}</p></div></figcaption>
    <div ref=${holder} class="plot" role="img" aria-label=${described(title, iterations, lines, format)}></div>
    <ul class="legend">
      ${lines.slice(0, SHOWN).map((one) => html`<li key=${one.name}>${
        one.part ? html`<${Square} part=${one.part} />` : html`<${Swatch} style=${look(one)} />`}
        <span>${one.name}</span> <strong>${format(one.values[point] ?? null)}</strong></li>`)}
    </ul>
    <details>
      <summary>Numbers<span class="hidden"> of ${title}</span></summary>
      <${Numbers} title=${title} iterations=${iterations} lines=${lines} format=${format} />
    </details>
  </figure>`;
}

function look(one) {
  return one.shade === undefined ? line(one.line) : shade(one.shade);
}

function Swatch({ style }) {
  return html`<svg width="22" height="8" aria-hidden="true"><line x1="1" x2="21" y1="4" y2="4" stroke=${style.stroke}
    stroke-width="2.5" stroke-dasharray=${style.dash.join(" ")} /></svg>`;
}

function Numbers({ title, iterations, lines, format }) {
  const step = Math.max(1, Math.ceil(iterations.length / ROWS));
  const rows = iterations.map((_, i) => i).filter((i) => (iterations.length - 1 - i) % step === 0);
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${`Numbers of ${title}`}>
    <table>
      <thead><tr><th scope="col">Iteration</th>${lines.map((one) => html`<th key=${one.name} scope="col">${one.name}</th>`)}</tr></thead>
      <tbody>${rows.map((i) => html`<tr key=${iterations[i]}><th scope="row">${iterations[i]}</th>
        ${lines.map((one) => html`<td key=${one.name}>${format(one.values[i] ?? null)}</td>`)}</tr>`)}</tbody>
    </table>
  </div>`;
}

function described(title, iterations, lines, format) {
  if (!iterations.length) return `${title}: nothing yet.`;
  const last = iterations.length - 1;
  const values = lines.slice(0, SHOWN).map((one) => `${one.name} ${format(one.values[last] ?? null)}`);
  return `${title}, iterations ${iterations[0]} to ${iterations[last]}. Last: ${values.join(", ")}.`;
}

// Stacked parts are drawn from their sums; the whole first, so that the others cover it.
function data(iterations, lines) {
  if (!lines[0]?.part) return [iterations, ...lines.map((one) => one.values)];
  let sums = iterations.map((_, i) => (lines[0].values[i] == null ? null : 0));
  const stacked = lines.map(({ values }) => (sums = sums.map((sum, i) => (sum === null ? null : sum + (values[i] ?? 0)))));
  return [iterations, ...stacked.reverse()];
}

function settings(holder, lines, band, format, moved) {
  const { text, grid, band: fill } = ink();
  const axis = { stroke: text, grid: { stroke: grid, width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
  return {
    width: holder.clientWidth || 300,
    height: HEIGHT,
    legend: { show: false },
    cursor: { y: false, drag: { x: false, y: false }, points: { size: 6 } },
    scales: { x: { time: false, range: (u) => ends(u.data[0]) }, y: { range: (u, low) => span(low, u.data.slice(1)) } },
    axes: [
      { ...axis, space: 60, size: 28 },
      { ...axis, size: 58, space: 34, values: (_, ticks) => ticks.map((value) => format(value)) },
    ],
    series: [
      {},
      ...lines.map((one, i) => (one.part ? bar(lines[lines.length - 1 - i].part) : {
        ...look(one),
        width: one.faint ? 1 : 1.75,
        points: { show: one.values.length < 3, size: 5 },
        spanGaps: false,
      })),
    ],
    bands: band ? [{ series: [band[0] + 1, band[1] + 1], fill }] : [],
    hooks: {
      setCursor: [(u) => moved(u.cursor.idx ?? null)],
      draw: [(u) => (holder.dataset.range = `${u.scales.x.min} ${u.scales.x.max}`)],
    },
  };
}

function bar(part) {
  const colour = fill(part);
  const paths = uPlot.paths.stepped({ align: -1 }); // a bar reaches from the point before to its own
  return { stroke: colour, fill: colour, width: 0, paths, points: { show: false } };
}

// All charts of a job have the same points, and so the same range; one point is in its middle.
function ends(iterations) {
  const [first, last] = [iterations[0] ?? 0, iterations.at(-1) ?? 1];
  return first === last ? [first - 1, last + 1] : [first, last];
}

// From 0, so that heights can be compared; with room above.
function span(low, series) {
  const { cut } = ceiling(series);
  return [Math.min(0, (low ?? 0) * 1.05), Math.max(cut * 1.08, 1e-9)];
}

// The highest value, and where to cut: a few that are far above all others would flatten these.
function ceiling(series) {
  const values = series.flatMap((one) => one.filter((value) => value != null)).sort((a, b) => a - b);
  if (!values.length) return { cut: 1, highest: 1 };
  const highest = values.at(-1);
  const usual = values[Math.floor((values.length - 1) * 0.97)];
  return { cut: highest > FAR * usual && usual > 0 ? 2 * usual : highest, highest };
}
