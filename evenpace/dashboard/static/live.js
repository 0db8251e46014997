// Follows the page's events, and asks it for the rest. Knows nothing of what is shown.

const SILENCE = 8000; // milliseconds without any event, after which the page counts as gone
const AGAIN = 1500; // milliseconds between attempts to reach it

// Calls `on(name, value)` for each event of these names, and `on("link", "live" | "lost" | "full")`; returns
// what ends it.
export function follow(path, names, on) {
  let source = null;
  let heard = Date.now();
  let retry = 0;
  let over = false;

  function open() {
    close();
    if (over || document.hidden) return;
    heard = Date.now();
    source = new EventSource(path);
    for (const name of [...names, "beat"]) {
      source.addEventListener(name, (event) => {
        heard = Date.now();
        on("link", "live");
        if (name !== "beat") on(name, JSON.parse(event.data));
      });
    }
    source.onerror = async () => {
      close();
      on("link", "lost");
      schedule();
      const well = await fetch("/healthz").then((answer) => answer.ok, () => false);
      if (well && !over && source === null) on("link", "full");
    };
  }

  function close() {
    clearTimeout(retry);
    source?.close();
    source = null;
  }

  function schedule() {
    clearTimeout(retry);
    retry = setTimeout(open, AGAIN);
  }

  const watchdog = setInterval(() => {
    if (source !== null && Date.now() - heard > SILENCE) {
      on("link", "lost");
      open();
    }
  }, 1000);
  document.addEventListener("visibilitychange", open);
  window.addEventListener("online", open);
  open();
  return () => {
    over = true;
    close();
    clearInterval(watchdog);
    document.removeEventListener("visibilitychange", open);
    window.removeEventListener("online", open);
  };
}

// The answer's value; an error with the page's own words where there is none.
export async function ask(path, options = {}) {
  const answer = await fetch(path, { ...options, signal: AbortSignal.timeout(30000) });
  const value = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(value.error ?? `the page answered with status ${answer.status}`);
  return value;
}

export function ofJob(job, what, parameters = []) {
  return `/api/jobs/${encodeURIComponent(job)}/${what}?${new URLSearchParams(parameters)}`;
}

export async function change(job, body) {
  const headers = { "Content-Type": "application/json", "X-Evenpace": "1" };
  if (token.get()) headers.Authorization = `Bearer ${token.get()}`;
  const path = `/api/jobs/${encodeURIComponent(job)}/control`;
  return (await ask(path, { method: "POST", headers, body: JSON.stringify(body) })).said;
}

const KEY = "evenpace-token"; // of this tab alone, until it is closed

export const token = {
  get: () => sessionStorage.getItem(KEY),
  set: (text) => sessionStorage.setItem(KEY, text),
  forget: () => sessionStorage.removeItem(KEY),
};
