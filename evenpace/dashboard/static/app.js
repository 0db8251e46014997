// The page as a whole: which job is looked at, and whether what is shown is how things stand.
import { Job } from "./job.js";
import { Jobs } from "./jobs.js";
import { ask, follow } from "./live.js";
import { html, render, useEffect, useRef, useState } from "./lib.js";

const SPOKEN = 15000; // milliseconds between two headlines that are read out

function chosen() {
  const found = /^#\/job\/(.+)$/.exec(location.hash);
  try {
    return found ? decodeURIComponent(found[1]) : null;
  } catch {
    return null;
  }
}

function App() {
  const [hash, setHash] = useState(chosen());
  const [jobs, setJobs] = useState(null);
  const [job, setJob] = useState(null);
  const [page, setPage] = useState(null);
  const [error, setError] = useState("");
  const [link, setLink] = useState("wait");
  const name = hash ?? (jobs?.length === 1 ? jobs[0].job : null);

  useEffect(() => {
    const moved = () => setHash(chosen());
    window.addEventListener("hashchange", moved);
    return () => window.removeEventListener("hashchange", moved);
  }, []);

  useEffect(() => {
    setJob(null);
    const path = name === null ? "/api/stream" : `/api/stream?job=${encodeURIComponent(name)}`;
    return follow(path, ["page", "jobs", "job"], (event, value) => {
      if (event === "link") setLink(value);
      else if (event === "jobs") setJobs(value);
      else if (event === "job") setJob({ name, view: value });
      else if (event === "page") setError(value.error);
    });
  }, [name]);

  const live = link === "live";
  useEffect(() => {
    if (live) ask("/api/page").then(setPage, () => {});
  }, [live, error]);

  useEffect(() => {
    document.title = name === null ? "evenpace" : `${name} – evenpace`;
  }, [name]);

  const view = job?.name === name ? job.view : undefined;
  const problem = trouble(link, error);
  return html`
    <header class="top">
      <a class="brand" href="#/"><img src="/static/icon.svg" alt="" width="24" height="24" />evenpace</a>
      <p class="link ${problem ? "bad" : live ? "good" : ""}">
        <span class="dot" aria-hidden="true"></span>${problem ? "not live" : live ? "live" : "connecting"}
        ${page && html`<span class="where">${" "}· manager ${page.manager}</span>`}
      </p>
    </header>
    ${problem && html`<p class="notice problem">${problem}</p>`}
    <${Spoken} text=${problem || view?.headline || ""} />
    <main id="content" tabindex="-1">
      <${Jobs} jobs=${jobs} name=${name} small=${name !== null} />
      ${name !== null && view === null && html`<p class="notice">No job ${name} is known here any more.</p>`}
      ${view && html`<${Job} key=${name} job=${view} page=${page} stale=${Boolean(problem)} />`}
    </main>
    <footer>evenpace ${page?.version} · keeps every worker at an even pace</footer>
  `;
}

function trouble(link, error) {
  if (link === "lost") return "This page's server cannot be reached; what you see is how things stood. Trying again.";
  if (link === "full") return "Too many viewers follow this page already. Trying again.";
  if (error) return `The manager cannot be reached; what you see is how things stood. ${error}`;
  return "";
}

// What screen readers say by themselves: the headline, now and then, or that it cannot be relied on.
function Spoken({ text }) {
  const [said, setSaid] = useState("");
  const next = useRef(text);
  const since = useRef(0);
  next.current = text;
  useEffect(() => {
    const speak = () => {
      if (Date.now() - since.current < SPOKEN && since.current) return;
      if (next.current) since.current = Date.now();
      setSaid(next.current);
    };
    speak();
    const timer = setInterval(speak, 1000);
    return () => clearInterval(timer);
  }, []);
  return html`<p class="hidden" aria-live="polite">${said}</p>`;
}

render(html`<${App} />`, document.getElementById("app"));
