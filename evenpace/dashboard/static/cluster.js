// The page about a shared cluster: puts each part that has changed in its place.
import { follow } from "./live.js";

const LINKS = {
  live: "",
  lost: "Not live: the server of this page does not answer. It is asked again.",
  full: "Not live: too many viewers follow this page. It is asked again.",
};

const link = document.getElementById("link");
const parts = {};
for (const part of document.querySelectorAll("[data-part]")) parts[part.dataset.part] = part;

follow("/api/stream", Object.keys(parts), (name, value) => {
  if (name !== "link") parts[name].innerHTML = value; // which is escaped
  else if (link.textContent !== LINKS[value]) link.textContent = LINKS[value];
});
