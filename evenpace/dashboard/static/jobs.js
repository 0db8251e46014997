// The list of jobs.
import { html } from "./lib.js";
import { State } from "./marks.js";

export function Jobs({ jobs, name, small }) {
  if (jobs === null) return html`<p class="notice">Asking the manager …</p>`;
  if (!jobs.length) {
    return html`<section class="empty">
      <h1>No jobs yet</h1>
      <p>A job appears here when its first worker joins the manager.</p>
    </section>`;
  }
  if (small && jobs.length === 1) return null;
  return html`<nav class=${small ? "jobs small" : "jobs"} aria-label="Jobs">
    ${!small && html`<h1>Jobs</h1>`}
    <ul>
      ${jobs.map(
        (job) => html`<li key=${job.job}>
          <a href=${`#/job/${encodeURIComponent(job.job)}`} aria-current=${job.job === name ? "page" : undefined}>
            <span class="name">${job.job}</span> <${State} state=${job.state} text=${job.state_text} />
            ${!small &&
            html`<span class="line">${job.headline}</span>
              <span class="line muted">${job.members_text} · iteration ${job.iteration}</span>`}
          </a>
        </li>`,
      )}
    </ul>
  </nav>`;
}
