// Colours of lines, which the colour-blind can tell apart (after Okabe and Ito), and dashes beside them.
const LIGHT = ["#0072b2", "#c24e00", "#00795a", "#a8457f", "#7a5c00", "#3d6fd1", "#8c3b2e", "#4c5560"];
const DARK = ["#56b4e9", "#f0a04b", "#3dc9a0", "#e59bc8", "#e8d44d", "#9db8ff", "#ff9e80", "#c5c9cf"];
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

export function ink() {
  return darkMode.matches
    ? { text: "#a9b1bb", grid: "#2b3037", band: "rgba(86, 180, 233, 0.18)" }
    : { text: "#59626d", grid: "#e9ebee", band: "rgba(0, 114, 178, 0.13)" };
}
