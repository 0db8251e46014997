// Changing a job: what may be changed, by whom, and a question before it is.
import { number } from "./format.js";
import { html, useEffect, useRef, useState } from "./lib.js";
import { change as send, token } from "./live.js";

export function Change({ job, page, change }) {
  const [known, setKnown] = useState(Boolean(token.get()));
  if (!page) return null;
  const ended = job.state === "ended" || job.state === "failed";
  return html`<section class="card" aria-labelledby="change-title">
    <h2 id="change-title">Change this job</h2>
    <p class="muted">${ended ? "It is over: nothing can be changed any more." : page.reason}</p>
    ${!ended && page.change === "token" && html`<${Token} known=${known} set=${setKnown} />`}
    ${!ended && (page.change === "open" || (page.change === "token" && known)) &&
    html`<${Policy} job=${job} page=${page} change=${change} />
      <${Sizer} job=${job} page=${page} change=${change} />
      <${BatchSize} job=${job} change=${change} />
      <${Resize} job=${job} change=${change} />
      <${Pause} job=${job} change=${change} />`}
  </section>`;
}

function Token({ known, set }) {
  const field = useRef(null);
  function use(event) {
    event.preventDefault();
    const text = field.current.value.trim();
    if (!text) return;
    token.set(text);
    field.current.value = "";
    set(true);
  }
  function forget() {
    token.forget();
    set(false);
  }
  return html`<form class="row" onSubmit=${use}>
    <label>Token <input ref=${field} type="password" autocomplete="off" spellcheck="false"
      placeholder=${known ? "one is in use" : ""} aria-describedby="token-note" /></label>
    <button>Use token</button>
    ${known && html`<button type="button" onClick=${forget}>Forget it</button>`}
    <p id="token-note" class="note">Stays in this tab until it is closed.</p>
  </form>`;
}

function Policy({ job, page, change }) {
  const [policy, setPolicy] = useState(job.policy);
  const [predictor, setPredictor] = useState(job.predictor || "ema");
  const [tolerance, setTolerance] = useState("");
  const predicts = page.predicting.includes(policy);
  function submit(event) {
    event.preventDefault();
    const wanted = { policy };
    if (predicts) wanted.predictor = predictor;
    if (tolerance !== "") wanted.tolerance = Number(tolerance) / 100;
    change({
      title: `Change the policy of ${job.job}?`,
      text: `From ${words(job.policy, job.predictor)} to ${words(policy, predicts && predictor)}. It holds from the first iteration that is not planned yet; no iteration is lost.`,
      verb: "Change policy",
      body: { policy: wanted },
    });
  }
  return html`<form class="row" onSubmit=${submit}>
    <label>Policy <select value=${policy} onChange=${(event) => setPolicy(event.target.value)}>
      ${page.policies.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}
    </select></label>
    ${predicts &&
    html`<label>Predictor <select value=${predictor} onChange=${(event) => setPredictor(event.target.value)}>
      ${page.predictors.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}
    </select></label>`}
    <label>Tolerance, % <input type="number" min="0" max="99" step="any" placeholder="as it is" value=${tolerance}
      onInput=${(event) => setTolerance(event.target.value)} /></label>
    <button>Change policy …</button>
  </form>`;
}

function words(policy, predictor) {
  return predictor ? `${policy} with ${predictor}` : policy;
}

function Sizer({ job, page, change }) {
  const [sizer, setSizer] = useState(job.sizer);
  const [least, setLeast] = useState("");
  const [most, setMost] = useState("");
  const chooses = page.choosing.includes(sizer);
  const bounded = chooses && (least !== "" || most !== "");
  function submit(event) {
    event.preventDefault();
    const wanted = bounded ? { sizer, least: Number(least), most: Number(most) } : { sizer };
    const sizes = bounded ? `, which chooses batches of ${number(wanted.least)} to ${number(wanted.most)} samples` : "";
    change({
      title: `Change the sizer of ${job.job}?`,
      text: `From ${job.sizer} to ${sizer}${sizes}. It holds from the first iteration that is not planned yet; no iteration is lost. The learning rate may have to follow: that is the script's.`,
      verb: "Change sizer",
      body: { sizer: wanted },
    });
  }
  return html`<form class="row" onSubmit=${submit}>
    <label>Sizer <select value=${sizer} onChange=${(event) => setSizer(event.target.value)}>
      ${page.sizers.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}
    </select></label>
    ${chooses &&
    html`<label>Least, samples <input type="number" min="1" max=${job.dataset_size} step="1" required=${bounded}
        placeholder="as it is" value=${least} onInput=${(event) => setLeast(event.target.value)} /></label>
      <label>Most, samples <input type="number" min=${least || 1} step="1" required=${bounded}
        placeholder="as it is" value=${most} onInput=${(event) => setMost(event.target.value)} /></label>`}
    <button>Change sizer …</button>
  </form>`;
}

function BatchSize({ job, change }) {
  const [samples, setSamples] = useState("");
  const chosen = job.sizer !== "fixed";
  function submit(event) {
    event.preventDefault();
    change({
      title: `Change the batch size of ${job.job}?`,
      text: `From ${job.batch_size} to ${samples} samples. The learning rate may have to follow: that is the script's.`,
      verb: "Change batch size",
      body: { total_batch_size: Number(samples) },
    });
  }
  return html`<form class="row" onSubmit=${submit}>
    <label>Batch size, samples <input type="number" min="1" max=${job.dataset_size} step="1" required disabled=${chosen}
      placeholder=${job.batch_size} value=${samples} onInput=${(event) => setSamples(event.target.value)} /></label>
    <button disabled=${chosen}>Change batch size …</button>
    ${chosen && html`<p class="note">The sizer ${job.sizer} chooses it: change the sizer to fixed to set it here.</p>`}
  </form>`;
}

function Resize({ job, change }) {
  const [workers, setWorkers] = useState("");
  function submit(event) {
    event.preventDefault();
    change({
      title: `Change the number of workers of ${job.job}?`,
      text: `To ${workers}, where ${job.members} are members. The slowest of those that are too many are drained: their training scripts end. More are awaited, and the job goes on meanwhile.`,
      verb: "Resize",
      body: { resize: { workers: Number(workers) } },
    });
  }
  return html`<form class="row" onSubmit=${submit}>
    <label>Workers <input type="number" min="1" step="1" required placeholder=${job.workers} value=${workers}
      onInput=${(event) => setWorkers(event.target.value)} /></label>
    <button>Resize …</button>
  </form>`;
}

function Pause({ job, change }) {
  const paused = job.state === "paused";
  const ask = () =>
    change(
      paused
        ? { title: `Resume ${job.job}?`, text: "It goes on where it stopped.", verb: "Resume", body: { paused: false } }
        : {
            title: `Pause ${job.job}?`,
            text: "Iterations that are planned are finished; then its workers wait until it is resumed.",
            verb: "Pause",
            body: { paused: true },
          },
    );
  return html`<p class="row"><button type="button" onClick=${ask}>${paused ? "Resume …" : "Pause …"}</button></p>`;
}

export function Confirm({ job, asked, close }) {
  const dialog = useRef(null);
  const [busy, setBusy] = useState(false);
  const [result, setResult] = useState(null);
  useEffect(() => {
    const opener = document.activeElement;
    dialog.current.showModal();
    return () => opener?.focus?.();
  }, []);
  useEffect(() => {
    if (result) dialog.current.querySelector("button")?.focus();
  }, [result]);
  async function confirm() {
    if (busy) return;
    setBusy(true);
    try {
      setResult({ said: await send(job, asked.body) });
    } catch (error) {
      setResult({ error: error.message });
    }
    setBusy(false);
  }
  return html`<dialog ref=${dialog} onClose=${close} aria-labelledby="confirm-title" aria-describedby="confirm-text">
    <h2 id="confirm-title">${result ? (result.error ? "Not done" : "Done") : asked.title}</h2>
    <p id="confirm-text" class=${result?.error ? "problem" : ""}>${result ? (result.error ?? result.said) : asked.text}</p>
    <div class="buttons">
      ${result
        ? html`<button type="button" onClick=${() => dialog.current.close()}>Close</button>`
        : html`<button type="button" onClick=${() => dialog.current.close()}>Cancel</button>
            <button type="button" class="main" aria-disabled=${busy} onClick=${confirm}>${busy ? "Asking …" : asked.verb}</button>`}
    </div>
  </dialog>`;
}
