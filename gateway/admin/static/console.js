// Adds what pages do not need: refreshing, times by choice, copying, shortcuts. No key and no timer changes anything.
"use strict";
const root = document.documentElement;
root.classList.add("scripted");

const REFRESH_MS = 5000;
const live = () => document.querySelector("[data-live]");
let isPaused = false;
let shownAt = Date.now();

// -- refreshing -------------------------------------------------------------------------------------------------------

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

// Whether somebody is at a row, which must not move then.
function isRead() {
  const focused = document.activeElement;
  return live().matches(":hover") || live().contains(focused) || scrollY > 0;
}

// What has the focus, to be found again among what replaces it.
function focusedIn(live) {
  const focused = document.activeElement;
  if (!focused || !live.contains(focused)) return () => null;
  const row = focused.closest("tr[data-id]");
  const at = row && [...row.querySelectorAll("a, button")].indexOf(focused);
  const target = focused.getAttribute("href");
  const rowOf = (found) => row && found.querySelector(`tr[data-id="${CSS.escape(row.dataset.id)}"]`);
  const linkOf = (found) => target && found.querySelector(`a[href="${CSS.escape(target)}"]`);
  const ofItself = (found) => focused.matches("[data-pause]") && found.querySelector("[data-pause]");
  return (found) => (rowOf(found) ? rowOf(found).querySelectorAll("a, button")[at] : linkOf(found) || ofItself(found));
}

// The state alone: times go on in every row.
const stateOf = (row) => (row.querySelector(".state") || row).textContent;

// Marks what changed. While somebody reads, rows keep their places, also those that are gone, and new ones wait: their
// number is returned.
function arrange(found, keepsPlaces) {
  const next = new Map([...found.querySelectorAll("tr[data-id]")].map((row) => [row.dataset.id, row]));
  const before = [...live().querySelectorAll("tr[data-id]")];
  const body = found.querySelector("[data-rows] tbody");
  const known = new Set(before.map((row) => row.dataset.id));
  const added = [...next.values()].filter((row) => !known.has(row.dataset.id));
  for (const row of before) {
    const now = next.get(row.dataset.id);
    if (now && stateOf(now) !== stateOf(row)) now.classList.add("changed");
  }
  if (!keepsPlaces || !body || !before.length) {
    for (const row of added) if (before.length) row.classList.add("changed");
    return 0;
  }
  for (const row of added) row.remove();
  for (const row of before) {
    const now = next.get(row.dataset.id) || document.importNode(row, true);
    now.classList.toggle("gone", !next.has(row.dataset.id));
    body.append(now);
  }
  return added.length;
}

function news(number) {
  const place = document.querySelector("[data-news]");
  if (!place || place.dataset.number === String(number)) return;
  place.dataset.number = number;
  place.replaceChildren();
  if (!number) return;
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Show";
  button.addEventListener("click", () => refresh(true));
  place.append(`${number} new `, button);
}

// The browser parses the page into a document of its own: no text of a response becomes markup here.
function refresh(isAsked = false) {
  if (!live()) return;
  if (busy() && !isAsked) return age(busy());
  const request = new XMLHttpRequest();
  request.open("GET", location.href);
  request.responseType = "document";
  request.timeout = REFRESH_MS;
  request.onerror = request.ontimeout = failed;
  request.onload = () => {
    const found = request.status === 200 && request.response && request.response.querySelector("[data-live]");
    if (!found) return failed();
    if (busy() && !isAsked) return age(busy());
    const number = arrange(found, isRead() && !isAsked);
    const again = focusedIn(live());
    const adopted = document.adoptNode(found);
    for (const open of live().querySelectorAll("details[open][id]")) {
      const same = adopted.querySelector(`#${CSS.escape(open.id)}`);
      if (same) same.open = true;
    }
    live().replaceWith(adopted);
    const focus = isAsked ? adopted.querySelector("tr.changed a") : again(adopted);
    if (focus) focus.focus({ preventScroll: !isAsked });
    document.title = (number ? `(${number} new) ` : "") + request.response.title;
    news(number);
    shownAt = Date.now();
    prepare();
  };
  request.send();
}

// -- times ------------------------------------------------------------------------------------------------------------

// What is ahead of this machine's clock: the gateway's time counts.
let aheadMs = 0;
const choice = document.getElementById("times");
const LOCAL = { year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit", timeZoneName: "short" };

function relative(seconds) {
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const [unit, factor] = units.find(([, each]) => Math.abs(seconds) >= each) || units[3];
  const text = `${Math.floor(Math.abs(seconds) / factor)} ${unit}`;
  return seconds >= 0 ? `${text} ago` : `in ${text}`;
}

function showTimes() {
  const chosen = localStorage.getItem("times") || "utc";
  root.dataset.times = chosen;
  if (choice) choice.value = chosen;
  for (const time of document.querySelectorAll("time")) {
    const at = Date.parse(time.dateTime);
    const local = new Date(at).toLocaleString(undefined, LOCAL);
    const ago = relative((Date.now() + aheadMs - at) / 1000);
    const text = { utc: time.dateTime, local, relative: ago }[chosen];
    if (time.textContent !== text) time.textContent = text;
    time.title = chosen === "relative" ? time.dateTime : ago;
  }
  for (const place of document.querySelectorAll("[data-age]")) {
    place.textContent = `${Math.round((Date.now() - shownAt) / 1000)} s ago.`;
  }
}

if (choice) {
  choice.addEventListener("change", () => {
    localStorage.setItem("times", choice.value);
    showTimes();
  });
}

// -- copying ----------------------------------------------------------------------------------------------------------

async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-copy]");
  if (!button) return;
  const text = button.dataset.copy;
  await copy(text.startsWith("/") ? location.origin + text : text);
  const name = button.textContent;
  button.textContent = "Copied";
  setTimeout(() => (button.textContent = name), 2000);
});

// -- what a page needs when it is shown ----------------------------------------------------------------------------------

function prepare() {
  for (const code of document.querySelectorAll("code[data-copy]:not(.copied)")) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.dataset.copy = code.textContent;
    button.textContent = "Copy";
    button.setAttribute("aria-label", "Copy the id");
    code.classList.add("copied");
    code.after(" ", button);
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
  const asked = document.querySelector(".asked time");
  if (asked) aheadMs = Date.parse(asked.dateTime) - shownAt;
  showTimes();
}

// -- shortcuts --------------------------------------------------------------------------------------------------------

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
  const links = [...document.querySelectorAll("[data-rows] tbody tr")].map((row) => row.querySelector("a")).filter(Boolean);
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
setInterval(() => refresh(), REFRESH_MS);
setInterval(showTimes, 1000);
