// Adds what pages do not need: refreshing, relative times, copying, shortcuts. No key and no timer changes anything.
"use strict";
document.documentElement.classList.add("scripted");

const REFRESH_MS = 5000;
const live = () => document.querySelector("[data-live]");
let isPaused = false;
let shownAt = Date.now();

function stale(text) {
  const place = document.querySelector("[data-stale]");
  if (place && place.textContent !== text) place.textContent = text;
}

// Why nothing may be replaced now; empty if it may be.
function busy() {
  const focused = document.activeElement;
  if (isPaused) return "Refreshing is paused";
  if (focused && focused.closest("form")) return "Not refreshed while you write";
  if (String(document.getSelection())) return "Not refreshed while text is selected";
  return document.hidden ? "Not refreshed in the background" : "";
}

function age(why) {
  stale(`${why}; what is shown is ${Math.round((Date.now() - shownAt) / 1000)} s old.`);
}

function failed() {
  age("Could not be asked");
}

// What has the focus, to be found again among what replaces it.
function focusedIn(live) {
  const focused = document.activeElement;
  if (!focused || !live.contains(focused)) return () => null;
  const row = focused.closest("tr[data-id]");
  const target = focused.getAttribute("href");
  const rowOf = (found) => row && found.querySelector(`tr[data-id="${CSS.escape(row.dataset.id)}"] a`);
  const linkOf = (found) => target && found.querySelector(`a[href="${CSS.escape(target)}"]`);
  const ofItself = (found) => focused.matches("[data-pause]") && found.querySelector("[data-pause]");
  return (found) => rowOf(found) || linkOf(found) || ofItself(found);
}

// The browser parses the page into a document of its own: no text of a response becomes markup here.
function refresh() {
  if (!live()) return;
  if (busy()) return age(busy());
  const request = new XMLHttpRequest();
  request.open("GET", location.href);
  request.responseType = "document";
  request.timeout = REFRESH_MS;
  request.onerror = request.ontimeout = failed;
  request.onload = () => {
    const found = request.status === 200 && request.response && request.response.querySelector("[data-live]");
    if (!found) return failed();
    if (busy()) return age(busy());
    const before = new Map([...live().querySelectorAll("tr[data-id]")].map((row) => [row.dataset.id, row.children[2].textContent]));
    const adopted = document.adoptNode(found);
    for (const row of adopted.querySelectorAll("tr[data-id]")) {
      if (before.get(row.dataset.id) !== row.children[2].textContent) row.classList.add("changed");
    }
    const again = focusedIn(live());
    for (const open of live().querySelectorAll("details[open][id]")) {
      const same = adopted.querySelector(`#${CSS.escape(open.id)}`);
      if (same) same.open = true;
    }
    live().replaceWith(adopted);
    const focus = again(adopted);
    if (focus) focus.focus({ preventScroll: true });
    document.title = request.response.title;
    shownAt = Date.now();
    prepare();
  };
  request.send();
}

function relative(seconds) {
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const [unit, factor] = units.find(([, each]) => Math.abs(seconds) >= each) || units[3];
  const text = `${Math.floor(Math.abs(seconds) / factor)} ${unit}`;
  return seconds >= 0 ? `${text} ago` : `in ${text}`;
}

function prepare() {
  for (const time of document.querySelectorAll("time")) {
    time.title = relative((Date.now() - Date.parse(time.dateTime)) / 1000);
  }
  for (const button of document.querySelectorAll("[data-pause]")) {
    button.setAttribute("aria-pressed", String(isPaused));
    button.onclick = () => {
      isPaused = !isPaused;
      button.setAttribute("aria-pressed", String(isPaused));
      if (isPaused) age(busy());
      else refresh();
    };
    button.hidden = !live();
  }
}

for (const code of document.querySelectorAll("[data-copy]")) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Copy";
  button.setAttribute("aria-label", "Copy the id");
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(code.textContent);
    button.textContent = "Copied";
  });
  code.after(" ", button);
}

const PAGES = {
  o: "/ui/", l: "/ui/operations", d: "/ui/dead-letters", s: "/ui/sinks",
  j: "/ui/journal", a: "/ui/audit", r: "/ui/routes", e: "/ui/explain",
};
const shortcuts = document.getElementById("shortcuts-on");
let isGoing = false;

function areOn() {
  return shortcuts && localStorage.getItem("shortcuts") !== "off";
}

if (shortcuts) {
  shortcuts.checked = areOn();
  shortcuts.addEventListener("change", () => localStorage.setItem("shortcuts", shortcuts.checked ? "on" : "off"));
}

function move(step) {
  const links = [...document.querySelectorAll("[data-rows] tbody a")];
  if (links.length) links[(links.indexOf(document.activeElement) + step + links.length) % links.length].focus();
}

document.addEventListener("keydown", (event) => {
  const focused = document.activeElement;
  const isOnPage = focused === document.body || focused.id === "main" || focused.closest("[data-rows]");
  if (!areOn() || !isOnPage || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  const page = isGoing && PAGES[event.key];
  isGoing = !isGoing && event.key === "g";
  if (page) location.assign(page);
  else if (event.key === "/") document.getElementById("quick").focus();
  else if (event.key === "?") {
    document.getElementById("shortcuts").open = true;
    document.getElementById("shortcuts").scrollIntoView();
  } else if (event.key === "j") move(1);
  else if (event.key === "k") move(-1);
  else return;
  event.preventDefault();
});

prepare();
const mistake = document.getElementById("mistake");
if (mistake) mistake.focus();
setInterval(refresh, REFRESH_MS);
