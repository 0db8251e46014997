// A job's timeline: lines of all workers or, if they are many, of their spread and of the chosen ones.
import { number, percent, seconds } from "./format.js";
import { html, useEffect, useMemo, useRef, useState } from "./lib.js";
import { ask, ofJob } from "./live.js";
import { Plot } from "./plot.js";

const POINTS = 240;
const PAUSE = 2000; // milliseconds between two askings

export function Charts({ job, picked }) {
  const [timeline, setTimeline] = useState(null);
  const [focus, setFocus] = useState(null);
  const asked = useRef({ at: 0, timer: 0, what: "" });
  const single = job.names ?? picked;
  const shown = focus ?? picked[0] ?? job.slowest;
  const drawn = useMemo(
    () => [...new Set([...single, ...(shown ? [shown] : [])])],
    [single.join("\n"), shown],
  );
  const what = `${job.run} ${job.attempt} ${drawn.join("\n")}`;

  useEffect(() => {
    const state = asked.current;
    const get = () => {
      state.at = Date.now();
      const parameters = [["points", POINTS], ...drawn.map((name) => ["worker", name])];
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
  const charts = draw(timeline, job.first_size, job.names === null ? picked : job.names, job.names === null);
  const focused = shown ? timeline.workers[shown] : undefined;
  return html`<section class="timeline" aria-labelledby="timeline-title">
    <h2 id="timeline-title">Timeline</h2>
    <div class="charts">
      ${charts.map((chart) => html`<${Plot} key=${chart.title} ...${chart} ...${fromFirst(timeline.iterations, chart.lines)} />`)}
      ${focused &&
      html`<${Plot} key="speed" title="Predicted and real speed" note=${`Samples per second, of ${shown}`}
        ...${fromFirst(timeline.iterations, speeds(focused))} format=${number}
        aside=${job.names !== null &&
        html`<label>Worker <select value=${shown} onChange=${(event) => setFocus(event.target.value)}>
          ${job.names.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}
        </select></label>`} />`}
    </div>
  </section>`;
}

function draw(timeline, first, names, many) {
  const drawn = names.filter((name) => timeline.workers[name]);
  const of = (quantity) => drawn.map((name, i) => ({ name, values: timeline.workers[name][quantity], line: many ? i + 2 : i }));
  const spread = (quantity) => [
    { name: "largest", values: timeline[quantity].map((s) => s[2]), line: 0, faint: true },
    { name: "median", values: timeline[quantity].map((s) => s[1]), line: 1 },
    { name: "smallest", values: timeline[quantity].map((s) => s[0]), line: 8, faint: true },
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
        { name: "measured", values: timeline.durations },
        { name: "even split", values: timeline.even_durations },
      ],
    },
    quantity("Batch sizes", "Samples per iteration", "batch_sizes", number),
    quantity("Batch processing times", "Waiting left out", "batch_processing_times", seconds),
    quantity("Waiting", "For the others, per iteration", "waiting_times", seconds),
  ];
  if (timeline.noise_scales.some(known)) {
    charts.push({
      title: "Gradient noise",
      note: "Its scale, and the whole batch, in samples",
      format: number,
      lines: [
        { name: "noise scale", values: timeline.noise_scales },
        { name: "batch", values: timeline.totals },
      ],
    });
  }
  if (whole(timeline.totals).some((size) => size !== first)) charts.push(...sizes(timeline));
  const errors = drawn.map((name, i) => ({ name, values: deviations(timeline.workers[name]), line: many ? i + 2 : i }));
  if (errors.length) {
    charts.push({ title: "Prediction errors", note: "|predicted − real| / real speed", format: percent, lines: errors });
  }
  return charts;
}

// The first point with a value: of long runs, single workers' lines are kept for the last part alone.
function fromFirst(iterations, lines) {
  const found = iterations.findIndex((_, i) => lines.some((one) => one.values[i] != null));
  const first = Math.max(0, found);
  if (!first) return { iterations, lines };
  return {
    iterations: iterations.slice(first),
    lines: lines.map((one) => ({ ...one, values: one.values.slice(first) })),
  };
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
      lines: [{ name: "batch", values: timeline.totals }],
    },
  ];
  if (timeline.efficiencies.some(known)) {
    charts.push(
      {
        title: "Statistical efficiency",
        note: "Progress per sample, relative to batches of the script's size",
        format: percent,
        lines: [{ name: "efficiency", values: timeline.efficiencies }],
      },
      {
        title: "Goodput",
        note: "Samples per second times their efficiency",
        format: number,
        lines: [
          { name: "goodput", values: timeline.goodputs },
          { name: "throughput", values: timeline.throughputs },
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
    { name: "real", values: worker.speeds },
    { name: "predicted", values: worker.predicted_speeds },
  ];
}
