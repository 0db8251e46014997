// One job: the headline, its figures, and all that is known of it.
import { Change, Confirm } from "./change.js";
import { Charts } from "./charts.js";
import { clock, number, percent, seconds, times } from "./format.js";
import { html, useState } from "./lib.js";
import { State } from "./marks.js";
import { Workers } from "./workers.js";

export function Job({ job, page, stale }) {
  const [asked, setAsked] = useState(null); // a change that waits to be confirmed
  const [picked, setPicked] = useState([]); // workers that are drawn one by one
  const figures = job.figures;
  return html`<article class=${stale ? "stale" : ""} aria-labelledby="job-name">
    <section class="hero">
      <div class="title"><h1 id="job-name">${job.job}</h1> <${State} state=${job.state} text=${job.state_text} /></div>
      <p class="headline">${job.headline}</p>
      ${job.reason && html`<p class="reason">${job.reason}</p>`}
      <dl class="figures">
        <${Figure} name="Throughput" value=${number(figures.throughput)} unit="samples/s"
          note=${figures.even_throughput != null && `even split: ${number(figures.even_throughput)}`} />
        <${Figure} name="Against even" value=${times(figures.speedup)} note=${[job.speedup_doubt, `in all ${job.saved_text}`].filter(Boolean).join("; ")} />
        <${Figure} name="Iteration" value=${seconds(figures.iteration_time)} note=${`${number(job.iteration)} complete, epoch ${figures.epoch ?? "–"}`} />
        <${Figure} name="Waiting" value=${percent(figures.waiting_share)} note="of the workers' time" />
        <${Figure} name="Prediction error" value=${percent(figures.prediction_error)} note="of speeds, RMS" />
        <${Figure} name="Gradient noise" value=${number(figures.noise_known ? figures.noise_scale : null)}
          unit=${figures.noise_known && "samples"} note=${figures.noise_text} />
        ${figures.exposed_share != null &&
        html`<${Figure} name="Hidden transfers" value=${percent(figures.hidden_share)} note=${figures.transfers_text || "of the transfers' time"} />`}
        ${figures.goodput != null &&
        html`<${Figure} name="Goodput" value=${number(figures.goodput)} unit="samples/s"
          note=${`efficiency ${percent(figures.efficiency)}, against batches of ${number(job.first_size)}`} />`}
        <${Figure} name="Workers" value=${job.members} note=${members(job)} />
      </dl>
      <p class="setting muted">
        Policy <strong>${job.policy}</strong>${job.predictor && html` with <strong>${job.predictor}</strong>`} · ${job.mode} · ${job.exchange} ·
        batches of <strong>${number(job.batch_size)}</strong> of ${number(job.dataset_size)} samples${job.micro_batch != null &&
        html`, in micro-batches of <strong>${number(job.micro_batch)}</strong>`} · seed
        ${" "}${job.seed}${job.attempt > 0 && html` · rewound ${job.attempt}×`}
      </p>
      ${job.group_changes_text && html`<p class="setting muted">Changes of the group: ${job.group_changes_text}</p>`}
      ${job.sizing && html`<p class="setting muted">Batch size by <strong>${job.sizer}</strong>: ${job.sizing}</p>`}
    </section>
    <${Workers} job=${job} page=${page} picked=${picked} pick=${setPicked} change=${setAsked} />
    <${Charts} job=${job} picked=${picked} />
    <div class="pair">
      <${Events} events=${job.events} />
      <${Change} job=${job} page=${page} change=${setAsked} />
    </div>
    ${asked && html`<${Confirm} job=${job.job} asked=${asked} close=${() => setAsked(null)} />`}
  </article>`;
}

function Figure({ name, value, unit, note }) {
  return html`<div>
    <dt>${name}</dt>
    <dd><span class="value">${value}</span>${unit && html`<span class="unit"> ${unit}</span>`}
      ${note && html`<span class="note">${note}</span>`}</dd>
  </div>`;
}

function members({ state, member_states: states, members: there, workers }) {
  const words = Object.entries(states).map(([state, count]) => `${count} ${state}`);
  if (there < workers && state !== "ended" && state !== "failed") words.push(`${workers - there} awaited`);
  return words.join(", ") || "none";
}

function Events({ events }) {
  return html`<section class="card" aria-labelledby="events-title">
    <h2 id="events-title">What happened</h2>
    ${events.length
      ? html`<ol class="events" tabindex="0" aria-labelledby="events-title">
          ${[...events].reverse().map(
            (event) => html`<li key=${`${event.at} ${event.text}`}>
              <time datetime=${new Date(event.at * 1000).toISOString()}>${clock(event.at)}</time> <span>${event.text}</span>
            </li>`,
          )}
        </ol>`
      : html`<p class="muted">Nothing yet.</p>`}
  </section>`;
}
