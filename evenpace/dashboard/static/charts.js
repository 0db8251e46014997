// A job's timeline: lines of all workers or, if they are many, of their spread and of the chosen ones.
import { number, percent, seconds } from "./format.js";
import { html, useEffect, useMemo, useRef, useState } from "./lib.js";
import { ask, ofJob } from "./live.js";
import { Plot } from "./plot.js";

const POINTS = 240;
const PAUSE = 2000; // milliseconds between two askings
const RANGES = [[Infinity, "all"], [1000, "the last 1,000"], [100, "the last 100"]]; // iterations, of all charts
const LONG = 2000; // iterations, of more of which single workers' lines are not kept whole

export function Charts({ job, picked }) {
  const [timeline, setTimeline] = useState(null);
  const [focus, setFocus] = useState(null);
  const [chosen, setChosen] = useState(null);
  const range = chosen ?? (job.figures.iterations > LONG ? 1000 : Infinity);
  const asked = useRef({ at: 0, timer: 0, what: "" });
  const single = job.names ?? picked;
  const shown = focus ?? picked[0] ?? job.slowest;
  const drawn = useMemo(
    () => [...new Set([...single, ...(shown ? [shown] : [])])],
    [single.join("\n"), shown],
  );
  const what = `${job.run} ${job.attempt} ${range} ${drawn.join("\n")}`;

  useEffect(() => {
    const state = asked.current;
    const get = () => {
      state.at = Date.now();
      const last = range === Infinity ? [] : [["last", range]];
      const parameters = [["points", POINTS], ...last, ...drawn.map((name) => ["worker", name])];
      ask(ofJob(job.job, "timeline", parameters)).then(setTimeline, () => {});
    };
    clearTimeout(state.timer);
    const wait = state.what === what ? state.at + PAUSE - Date.now() : 0;
    state.what = what;
    state.timer = setTimeout(get, Math.max(0, wait));
    return () => clearTimeout(state.timer);
  }, [job.figures.iterations, what]);

  if (timeline === null || !timeline.iterations.length) {
    return html`<section class="card" aria-labelledby="timeline-title"><h2 id="timeline-title">Timeline</h2>
      <p class="muted">There is nothing to draw before the first iteration is complete.</p></section>`;
  }
  const charts = draw(timeline, job.first_size, single, job.names === null);
  const focused = shown ? timeline.workers[shown] : undefined;
  const { iterations } = timeline;
  return html`<section class="timeline" aria-labelledby="timeline-title">
    <div class="head">
      <h2 id="timeline-title">Timeline</h2>
      <div class="row">
        ${job.names !== null &&
        html`<label>Worker <select value=${shown} onChange=${(event) => setFocus(event.target.value)}>
          ${job.names.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}
        </select></label>`}
        <label>Iterations <select value=${range} onChange=${(event) => setChosen(Number(event.target.value))}>
          ${RANGES.map(([most, text]) => html`<option key=${text} value=${most}>${text}</option>`)}
        </select></label>
      </div>
    </div>
    <div class="charts">
      ${focused &&
      html`<${Plot} key="parts" title="An iteration's time" note=${`What ${shown} spends it on`} iterations=${iterations}
        lines=${parts(focused)} format=${seconds} />`}
      ${charts.map((chart) => html`<${Plot} key=${chart.title} ...${chart} iterations=${iterations} />`)}
      ${focused &&
      html`<${Plot} key="speed" title="Predicted and real speed" note=${`Samples per second, of ${shown}`}
        iterations=${iterations} lines=${speeds(focused)} format=${number} />`}
    </div>
  </section>`;
}

function draw(timeline, first, names, many) {
  const drawn = names.filter((name) => timeline.workers[name]);
  const of = (quantity) => drawn.map((name, line) => ({ name, values: timeline.workers[name][quantity], line }));
  const spread = (quantity) => [
    { name: "largest", values: timeline[quantity].map((s) => s[2]), shade: 1, faint: true },
    { name: "median", values: timeline[quantity].map((s) => s[1]), shade: 0 },
    { name: "smallest", values: timeline[quantity].map((s) => s[0]), shade: 1, faint: true },
  ];
  const quantity = (title, note, name, format) => ({
    title,
    note,
    format,
    ...(many ? { lines: [...spread(name), ...of(name)], band: [0, 2] } : { lines: of(name) }),
  });
  const charts = [
    {
      title: "Iteration durations",
      note: "As measured, and as an even split would have been (estimated)",
      format: seconds,
      lines: [
        { name: "measured", values: timeline.durations, shade: 0 },
        { name: "even split", values: timeline.even_durations, shade: 1 },
      ],
    },
    quantity("Batch sizes", "Samples per iteration", "batch_sizes", number),
    quantity("Batch processing times", "Computing and communicating: waiting left out", "batch_processing_times", seconds),
  ];
  if (timeline.noise_scales.some(known)) {
    charts.push({
      title: "Gradient noise",
      note: "Its scale, and the whole batch, in samples",
      format: number,
      lines: [
        { name: "noise scale", values: timeline.noise_scales, shade: 0 },
        { name: "batch", values: timeline.totals, shade: 1 },
      ],
    });
  }
  if (whole(timeline.totals).some((size) => size !== first)) charts.push(...sizes(timeline));
  const errors = drawn.map((name, line) => ({ name, values: deviations(timeline.workers[name]), line }));
  if (errors.length) {
    charts.push({ title: "Prediction errors", note: "|predicted − real| / real speed", format: percent, lines: errors });
  }
  return charts;
}

// What makes up a worker's time in each iteration; the second is left out where it is not known.
function parts({ computing_times: computing, communication_times: communicating, waiting_times: waiting }) {
  return [
    { name: "computing", values: computing },
    { name: "communicating", values: communicating },
    { name: "waiting", values: waiting },
  ]
    .filter(({ name, values }) => name !== "communicating" || values.some(known))
    .map((one) => ({ ...one, part: one.name }));
}

// Sizes of whole batches: those below both of their neighbours may be of epochs' ends, and are left out.
function whole(totals) {
  return totals.filter((size, i) => !(size < (totals[i - 1] ?? Infinity) && size < (totals[i + 1] ?? Infinity)));
}

function sizes(timeline) {
  const charts = [
    {
      title: "Whole batch",
      note: "Samples per iteration, of all workers",
      format: number,
      lines: [{ name: "batch", values: timeline.totals, shade: 0 }],
    },
  ];
  if (timeline.efficiencies.some(known)) {
    charts.push(
      {
        title: "Statistical efficiency",
        note: "Progress per sample, relative to batches of the script's size",
        format: percent,
        lines: [{ name: "efficiency", values: timeline.efficiencies, shade: 0 }],
      },
      {
        title: "Goodput",
        note: "Samples per second times their efficiency",
        format: number,
        lines: [
          { name: "goodput", values: timeline.goodputs, shade: 0 },
          { name: "throughput", values: timeline.throughputs, shade: 1 },
        ],
      },
    );
  }
  return charts;
}

function known(value) {
  return value != null;
}

function deviations({ speeds: real, predicted_speeds: predicted }) {
  return real.map((speed, i) => (speed && predicted[i] != null ? Math.abs(predicted[i] - speed) / speed : null));
}

function speeds(worker) {
  return [
    { name: "real", values: worker.speeds, shade: 0 },
    { name: "predicted", values: worker.predicted_speeds, shade: 1 },
  ];
}
