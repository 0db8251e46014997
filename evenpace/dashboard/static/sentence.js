// What is said of a worker: why it is called what it is called, and what is done about it.
export function sentence({ verdict_text: verdict, balanced_text: balanced }) {
  return `${[verdict, balanced].filter(Boolean).join("; ")}.`;
}

export function capital(text) {
  return text.slice(0, 1).toUpperCase() + text.slice(1);
}
