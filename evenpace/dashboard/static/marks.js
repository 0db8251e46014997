// Small marks: a job's state, a worker's verdict, a share as a bar. Never by colour alone.
import { html } from "./lib.js";
import { percent, seconds } from "./format.js";

const STATES = { running: "●", paused: "❚❚", gathering: "○", recovering: "↻", failed: "✕", ended: "■" };

export function State({ state, text }) {
  return html`<span class="badge state-${state}"><span aria-hidden="true">${STATES[state] ?? "·"}</span> ${text}</span>`;
}

const VERDICTS = { chronic: "▲", passing: "◆", leader: "★", even: "●" };

export function Verdict({ verdict, meaning }) {
  if (!verdict) return html`<span class="muted">new</span>`;
  return html`<span class="badge verdict-${verdict}" title=${meaning}><span aria-hidden="true">${VERDICTS[verdict]}</span> ${verdict}</span>`;
}

export const PARTS = ["computing", "communicating", "waiting"];

export function Square({ part }) {
  return html`<svg class="parts" width="10" height="10" aria-hidden="true"><rect class=${part} width="10" height="10" rx="2" /></svg>`;
}

// What a worker's time in an iteration is made of, on a scale that all rows share, as a bar and in words.
export function Parts({ spent, most }) {
  if (spent.computing == null) return html`<span class="muted">–</span>`;
  const there = PARTS.filter((part) => spent[part] != null);
  const text = there.map((part) => `${part} ${seconds(spent[part])}`).join(", ");
  let left = 0;
  return html`<span class="parts" title=${text}>
    <svg viewBox="0 0 120 12" preserveAspectRatio="none" aria-hidden="true">${there.map((part) => {
      const width = (spent[part] / most) * 120;
      left += width;
      return html`<rect key=${part} class=${part} x=${left - width} width=${width} height="12" />`;
    })}</svg>
    <span class="hidden">${text}</span>
  </span>`;
}

export function Share({ value, good }) {
  if (value == null) return html`<span class="muted">–</span>`;
  const width = Math.max(0, Math.min(1, value)) * 48;
  return html`<span class="share">
    <svg width="48" height="6" aria-hidden="true"><rect class="track" width="48" height="6" rx="3" />
      <rect class=${good ? "good" : "fill"} width=${width} height="6" rx="3" /></svg>
    <span>${percent(value)}</span>
  </span>`;
}

// Minimum, median and maximum on a scale that all rows share.
export function Range({ spread, most }) {
  if (spread.median == null) return html`<span class="muted">–</span>`;
  const at = (value) => 2 + (Math.min(value, most) / most) * 76;
  const text = `${seconds(spread.median)}, from ${seconds(spread.minimum)} to ${seconds(spread.maximum)}`;
  return html`<span class="range" title=${text}>
    <svg viewBox="0 0 80 12" aria-hidden="true"><line class="track" x1="2" x2="78" y1="6" y2="6" />
      <line class="fill" x1=${at(spread.minimum)} x2=${at(spread.maximum)} y1="6" y2="6" />
      <circle cx=${at(spread.median)} cy="6" r="4" /></svg>
    <span>${seconds(spread.median)}</span><span class="hidden">, from ${seconds(spread.minimum)} to ${seconds(spread.maximum)}</span>
  </span>`;
}
