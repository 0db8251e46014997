// One worker, on demand: why it is called what it is called, and what may be done about it.
import { html, useState } from "./lib.js";
import { number, percent, seconds } from "./format.js";
import { PARTS } from "./marks.js";
import { capital, sentence } from "./sentence.js";

const MOST = 8; // that are drawn one by one beside the bands

export function WorkerDetails({ row, job, page, change, picked, pick }) {
  const [minimum, most, granularity, mostAtOnce] = row.bounds ?? [null, null, null, null];
  const [bounds, setBounds] = useState({ minimum, maximum: most, granularity });
  const drawn = picked.includes(row.worker);
  const set = (name) => (event) => setBounds({ ...bounds, [name]: event.target.valueAsNumber });
  const member = row.bounds !== null;

  function submit(event) {
    event.preventDefault();
    change({
      title: `Change the bounds of ${row.worker}?`,
      text: `From ${minimum} to ${number(most)}, to ${bounds.minimum} to ${number(bounds.maximum)} samples, in steps of ${bounds.granularity}.`,
      verb: "Set bounds",
      body: { bounds: { worker: row.worker, ...bounds } },
    });
  }

  function drain() {
    change({
      title: `Drain ${row.worker}?`,
      text: "It finishes what it has been given, then it is released: its training script ends. The others take its samples.",
      verb: "Drain",
      body: { drain: { worker: row.worker } },
    });
  }

  function remove() {
    change({
      title: `Remove ${row.worker}?`,
      text: "Only where its machine is gone for good: the others take its samples at once, and should it still run, its script ends with an error.",
      verb: "Remove",
      body: { remove: { worker: row.worker } },
    });
  }

  return html`<div class="worker">
    <p>${capital(sentence(row))}</p>
    <dl class="small">
      <div><dt>Speed</dt><dd>${number(row.real_speed)} samples/s</dd></div>
      <div><dt>Predicted</dt><dd>${number(row.predicted_speed)} samples/s</dd></div>
      <div><dt>Prediction error</dt><dd>${percent(row.prediction_error)}</dd></div>
      ${PARTS.map((name) => html`<div key=${name}><dt>${capital(name)}</dt><dd>${seconds(row.time_parts[name])}</dd></div>`)}
      ${member && html`<div><dt>Bounds</dt><dd>${minimum} to ${number(most)}, steps of ${granularity}</dd></div>
        ${job.micro_batch != null && html`<div><dt>Micro-batches at once</dt><dd>${number(row.at_once)}, at most ${mostAtOnce}</dd></div>`}
        ${row.rank !== null && html`<div><dt>Rank</dt><dd>${row.rank} of ${job.group_size}</dd></div>`}
        <div><dt>Heard</dt><dd>${row.silence < 1 ? "just now" : `${seconds(row.silence)} ago`}</dd></div>`}
    </dl>
    ${job.names === null &&
    html`<label class="check"><input type="checkbox" checked=${drawn} disabled=${!drawn && picked.length >= MOST}
      onChange=${() => pick(drawn ? picked.filter((name) => name !== row.worker) : [...picked, row.worker])} /> Draw it in the charts</label>`}
    ${member && page && page.change !== "none" &&
    html`<form class="row" onSubmit=${submit}>
      <label>Least <input type="number" min="1" required value=${bounds.minimum} onInput=${set("minimum")} /></label>
      <label>Most <input type="number" min="1" required value=${bounds.maximum} onInput=${set("maximum")} /></label>
      <label>Steps of <input type="number" min="1" required value=${bounds.granularity} onInput=${set("granularity")} /></label>
      <button>Set bounds …</button>
      <button type="button" class="risky" onClick=${drain}>Drain …</button>
      <button type="button" class="risky" onClick=${remove}>Remove …</button>
    </form>`}
  </div>`;
}
