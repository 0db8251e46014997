// Who slows whom: the table of workers, a part at a time; filtered, sorted and cut by the server.
import { measured, number, percent, seconds, times } from "./format.js";
import { Fragment, html, useEffect, useRef, useState } from "./lib.js";
import { ask, ofJob } from "./live.js";
import { Parts, PARTS, Range, Share, Square, Verdict } from "./marks.js";
import { capital, sentence } from "./sentence.js";
import { WorkerDetails } from "./worker.js";

const ROWS = 25;
const FEW = 8; // workers, up to which nobody needs a filter
const FIRST = [
  ["worker", "Worker", false],
  ["verdict", "Verdict", false],
  ["seconds_per_sample", "Time per sample", true],
  ["relative_to_best", "Of its best", false],
  ["relative_to_others", "Of the others", false],
  ["batch_size", "Batch", true],
  ["waiting_share", "Iteration", true],
];
const HIDDEN = ["hidden_share", "Hidden", false];
const LAST = ["won_per_iteration", "Won or given", true];

export function Workers({ job, page, picked, pick, change }) {
  const [sort, setSort] = useState({ by: "seconds_per_sample", descending: true });
  const [filter, setFilter] = useState("");
  const [verdict, setVerdict] = useState("");
  const [offset, setOffset] = useState(0);
  const [part, setPart] = useState(null);
  const [open, setOpen] = useState(null);
  const turn = useRef(0);
  const shown = page?.columns ?? []; // measured values
  const terms = page?.terms ?? { verdicts: {}, parts: {}, columns: {} };
  const hides = job.figures.exposed_share != null; // whether anybody has measured transfers
  const columns = [...FIRST, ...(hides ? [HIDDEN] : []), ...shown.map(({ name, title }) => [name, capital(title), true]), LAST];

  useEffect(() => {
    const mine = ++turn.current;
    const asked = { sort: sort.by, descending: sort.descending ? 1 : 0, filter, verdict, offset, limit: ROWS };
    ask(ofJob(job.job, "workers", asked)).then(
      (found) => {
        if (mine !== turn.current) return;
        if (found.rows.length === 0 && offset > 0) setOffset(Math.max(0, Math.ceil(found.matching / ROWS) - 1) * ROWS);
        setPart(found);
      },
      () => {}, // the next event asks again; that the page is gone is said above
    );
  }, [job, sort, filter, verdict, offset]);

  const narrow = (set) => (event) => {
    set(event.target.value);
    setOffset(0);
  };
  const by = (column, first) => () => {
    setSort({ by: column, descending: sort.by === column ? !sort.descending : first });
    setOffset(0);
  };
  const most = Math.max(...(part?.rows ?? []).map((row) => row.seconds_per_sample.maximum ?? 0), 1e-12);
  const longest = Math.max(...(part?.rows ?? []).map(({ time_parts: spent }) => total(spent)), 1e-12);
  const many = part !== null && part.all > ROWS;
  return html`<section class="card" aria-labelledby="workers-title">
    <div class="head">
      <h2 id="workers-title">Who slows whom</h2>
      <p class="counts"><${Counts} verdicts=${job.verdicts} meanings=${terms.verdicts} /></p>
    </div>
    ${job.straggler &&
    html`<p class="straggler"><strong>${job.straggler.worker}</strong>: ${sentence(job.straggler)}</p>`}
    <form class=${`filter ${part !== null && part.all <= FEW ? "few" : ""}`} role="search" aria-label="Workers" onSubmit=${(event) => event.preventDefault()}>
      <label>Name <input type="search" value=${filter} onInput=${narrow(setFilter)} maxlength="200" autocomplete="off" /></label>
      <label>Verdict <select value=${verdict} onChange=${narrow(setVerdict)}>
        <option value="">any</option>
        ${["chronic", "passing", "leader", "even"].map((name) => html`<option key=${name}>${name}</option>`)}
      </select></label>
      <label class="narrow">Sorted by <select value=${sort.by} onChange=${(event) => by(event.target.value, columns.find((c) => c[0] === event.target.value)[2])()}>
        ${columns.map(([column, title]) => html`<option key=${column} value=${column}>${title}</option>`)}
      </select></label>
    </form>
    <table class="workers" role="table" aria-labelledby="workers-title">
      <thead role="rowgroup"><tr role="row">
        ${columns.map(
          ([column, title, first]) => html`<th key=${column} role="columnheader" scope="col"
              aria-sort=${sort.by === column ? (sort.descending ? "descending" : "ascending") : undefined}>
            <button type="button" title=${terms.columns[title.toLowerCase()]} onClick=${by(column, first)}>${title}<span class="arrow" aria-hidden="true">${
              sort.by === column ? (sort.descending ? "▾" : "▴") : ""
            }</span></button>
          </th>`,
        )}
      </tr></thead>
      <tbody role="rowgroup">
        ${part?.rows.map(
          (row) => html`<${Fragment} key=${row.worker}>
            <${Row} row=${row} shown=${shown} inMicroBatches=${job.micro_batch != null} hides=${hides} most=${most} longest=${longest} meanings=${terms.verdicts} open=${open === row.worker}
              toggle=${() => setOpen(open === row.worker ? null : row.worker)} />
            ${open === row.worker &&
            html`<tr role="row" class="more"><td role="cell" colspan=${columns.length}>
              <${WorkerDetails} row=${row} job=${job} page=${page} change=${change} picked=${picked} pick=${pick} />
            </td></tr>`}
          <//>`,
        )}
      </tbody>
    </table>
    <ul class="legend" aria-label="Parts of an iteration">
      ${PARTS.map((name) => html`<li key=${name} title=${terms.parts[name]}><${Square} part=${name} /> <span>${name}</span></li>`)}
    </ul>
    <details>
      <summary>What the words mean</summary>
      <dl class="terms">
        ${Object.values(terms).flatMap(Object.entries).map(([term, meaning]) => html`<div key=${term}><dt>${capital(term)}</dt> <dd>${meaning}.</dd></div>`)}
      </dl>
    </details>
    ${part !== null && part.matching === 0 && html`<p class="muted">No worker is like that.</p>`}
    ${many &&
    html`<nav class="pages" aria-label="Parts of the table">
      <button type="button" aria-disabled=${offset === 0} onClick=${() => setOffset(Math.max(0, offset - ROWS))}>Previous</button>
      <span>${part.matching ? offset + 1 : 0}–${Math.min(offset + ROWS, part.matching)} of ${part.matching}</span>
      <button type="button" aria-disabled=${offset + ROWS >= part.matching}
        onClick=${() => offset + ROWS < part.matching && setOffset(offset + ROWS)}>Next</button>
    </nav>`}
  </section>`;
}

function total({ computing, communicating, waiting }) {
  return (computing ?? 0) + (communicating ?? 0) + (waiting ?? 0);
}

function Counts({ verdicts, meanings }) {
  const words = [
    [verdicts.chronic, "chronic"],
    [verdicts.passing, "passing"],
    [verdicts.leader, "leader"],
    [verdicts.even, "even"],
  ].filter(([count]) => count);
  return words.map(([count, word]) => html`<span key=${word}>${count} <${Verdict} verdict=${word} meaning=${meanings[word]} /></span>`);
}

// A straggler's iterations would be longer with an even share, a leader's shorter.
function Won({ value }) {
  if (value == null) return html`<span class="muted">–</span>`;
  return html`${seconds(Math.abs(value))}<span class="note">${value >= 0 ? "won" : "given"} per iteration</span>`;
}

function Row({ row, shown, inMicroBatches, hides, most, longest, meanings, open, toggle }) {
  return html`<tr role="row" class=${row.state === "gone" ? "gone" : ""}>
    <th role="rowheader" scope="row">
      <button type="button" class="who" aria-expanded=${open} onClick=${toggle}>${row.worker}</button>
      <span class="note">${row.state}</span>
    </th>
    <td role="cell" data-name="Verdict"><${Verdict} verdict=${row.verdict} meaning=${meanings[row.verdict]} /></td>
    <td role="cell" data-name="Time per sample"><${Range} spread=${row.seconds_per_sample} most=${most} /></td>
    <td role="cell" data-name="Of its best"><${Share} value=${row.relative_to_best} good /></td>
    <td role="cell" data-name="Of the others">${times(row.relative_to_others)}</td>
    <td role="cell" data-name="Batch">${number(row.batch_size)}<span class="note">even: ${number(row.even_batch_size)}</span>
      ${inMicroBatches && html`<span class="note">${number(row.at_once)} at once</span>`}</td>
    <td role="cell" data-name="Iteration"><${Parts} spent=${row.time_parts} most=${longest} />
      <span class="note">waits ${percent(row.waiting_share)}</span></td>
    ${hides &&
    html`<td role="cell" data-name="Hidden">${percent(row.hidden_share)}${row.bottleneck && html`<span class="note">bound by ${row.bottleneck}</span>`}</td>`}
    ${shown.map(({ name, title, form }) => html`<td role="cell" key=${name} data-name=${capital(title)}>${measured(row[name], form)}</td>`)}
    <td role="cell" data-name="Won or given"><${Won} value=${row.won_per_iteration} /></td>
  </tr>`;
}
