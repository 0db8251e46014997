// Numbers as people read them; "–" where there is none.

const NONE = "–";

export function seconds(value) {
  if (value == null) return NONE;
  const size = Math.abs(value);
  if (size < 0.0000005) return "0 s";
  if (size < 0.001) return `${(value * 1e6).toPrecision(3)} µs`;
  if (size < 1) return `${trim(value * 1000)} ms`;
  if (size < 120) return `${trim(value)} s`;
  if (size < 7200) return `${trim(value / 60)} min`;
  return `${trim(value / 3600)} h`;
}

export function number(value) {
  if (value == null) return NONE;
  if (Math.abs(value) >= 1000) return Math.round(value).toLocaleString("en");
  return trim(value);
}

export function percent(value) {
  if (value == null) return NONE;
  const shown = value * 100;
  return `${Math.abs(shown) < 10 ? shown.toFixed(1) : Math.round(shown)}%`;
}

// A measured value, in the form that the page's list of columns names.
export function measured(value, form) {
  return { percent, seconds, number }[form](value);
}

export function times(value) {
  return value == null ? NONE : `${value.toFixed(2)}×`;
}

export function clock(at) {
  return new Date(at * 1000).toLocaleTimeString("en-GB");
}

function trim(value) {
  return String(Number(value.toPrecision(3)));
}
