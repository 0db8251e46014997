// Colours of workers' lines, which the colour-blind can tell apart (after Okabe and Ito), and dashes beside them.
const LIGHT = ["#0072b2", "#c24e00", "#00795a", "#a8457f", "#7a5c00", "#3d6fd1", "#8c3b2e", "#6a3fa0"];
const DARK = ["#56b4e9", "#f0a04b", "#3dc9a0", "#e59bc8", "#e8d44d", "#9db8ff", "#ff9e80", "#c3a6ff"];
const DASHES = [[], [8, 4], [2, 3], [9, 3, 2, 3]];

export const darkMode = window.matchMedia("(prefers-color-scheme: dark)");

// Of the line with this number: no two of the first 32 are alike.
export function line(number) {
  const colours = darkMode.matches ? DARK : LIGHT;
  return {
    stroke: colours[number % colours.length],
    dash: DASHES[(number + Math.floor(number / colours.length)) % DASHES.length],
  };
}

// Of a line that is no worker's: what was measured is 0; what it is compared with is 1. No colour, so no worker's.
export function shade(number) {
  const shades = darkMode.matches ? ["#e7e9ec", "#8f98a3"] : ["#1b1f24", "#868e99"];
  return { stroke: shades[number], dash: [] };
}

// Of the parts of a worker's time; the page's style has them, for light and dark.
export function fill(part) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${part}`).trim();
}

export function ink() {
  return darkMode.matches
    ? { text: "#a9b1bb", grid: "#2b3037", band: "rgba(86, 180, 233, 0.18)" }
    : { text: "#59626d", grid: "#e9ebee", band: "rgba(0, 114, 178, 0.13)" };
}
