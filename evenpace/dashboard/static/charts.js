// A job's course: what to draw, of everybody or, where they are many, of their spread and of those picked.
import { number, percent, seconds } from "./format.js";
import { html, useEffect, useMemo, useRef, useState } from "./lib.js";
import { ask, ofJob } from "./live.js";
import { Plot } from "./plot.js";

const POINTS = 240;
const PAUSE = 2000; // milliseconds between two askings

export function Charts({ job, picked }) {
  const [course, setCourse] = useState(null);
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
      ask(ofJob(job.job, "timeline", parameters)).then(setCourse, () => {});
    };
    clearTimeout(state.timer);
    const wait = state.what === what ? state.at + PAUSE - Date.now() : 0;
    state.what = what;
    state.timer = setTimeout(get, Math.max(0, wait));
    return () => clearTimeout(state.timer);
  }, [job.figures.iterations, what]);

  if (course === null || !course.iterations.length) {
    return html`<section class="card" aria-labelledby="course-title"><h2 id="course-title">Its course</h2>
      <p class="muted">There is nothing to draw before the first iteration is complete.</p></section>`;
  }
  const charts = draw(course, job.names === null ? picked : job.names, job.names === null);
  const focused = shown ? course.workers[shown] : undefined;
  return html`<section class="course" aria-labelledby="course-title">
    <h2 id="course-title">Its course</h2>
    <div class="charts">
      ${charts.map((chart) => html`<${Plot} key=${chart.title} ...${chart} ...${known(course.iterations, chart.lines)} />`)}
      ${focused &&
      html`<${Plot} key="speed" title="Predicted and real speed" note=${`Samples per second, of ${shown}`}
        ...${known(course.iterations, speeds(focused))} format=${number}
        aside=${job.names !== null &&
        html`<label>Worker <select value=${shown} onChange=${(event) => setFocus(event.target.value)}>
          ${job.names.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}
        </select></label>`} />`}
    </div>
  </section>`;
}

function draw(course, names, many) {
  const drawn = names.filter((name) => course.workers[name]);
  const of = (quantity) => drawn.map((name, i) => ({ name, values: course.workers[name][quantity], line: many ? i + 2 : i }));
  const spread = (quantity) => [
    { name: "largest", values: course[quantity].map((s) => s[2]), line: 0, faint: true },
    { name: "median", values: course[quantity].map((s) => s[1]), line: 1 },
    { name: "smallest", values: course[quantity].map((s) => s[0]), line: 8, faint: true },
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
        { name: "measured", values: course.durations },
        { name: "even split", values: course.even_durations },
      ],
    },
    quantity("Batch sizes", "Samples per iteration", "batch_sizes", number),
    quantity("Batch processing times", "Waiting left out", "batch_processing_times", seconds),
    quantity("Waiting", "For the others, per iteration", "waiting_times", seconds),
  ];
  const errors = drawn.map((name, i) => ({ name, values: deviations(course.workers[name]), line: many ? i + 2 : i }));
  if (errors.length) {
    charts.push({ title: "Prediction errors", note: "|predicted − real| / real speed", format: percent, lines: errors });
  }
  return charts;
}

// From where on anything is known: of long runs, single workers' course is kept for the last part alone.
function known(iterations, lines) {
  const found = iterations.findIndex((_, i) => lines.some((one) => one.values[i] != null));
  const first = Math.max(0, found);
  if (!first) return { iterations, lines };
  return {
    iterations: iterations.slice(first),
    lines: lines.map((one) => ({ ...one, values: one.values.slice(first) })),
  };
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
