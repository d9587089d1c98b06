// Keeps the page fresh, adds the browser's own time zone, and reads out blocks.
// The page is complete without this file: then it reloads every 15 s and blocks have titles.
"use strict";

const REFRESH_MS = 3000;
const TIMEOUT_MS = 10000;
const live = document.getElementById("live");
const tip = document.getElementById("tip");
const offline = document.getElementById("offline");
const asof = document.getElementById("asof");

// --- times: UTC as the server wrote it, and beside it, marked, what this browser makes of it ---

const clock = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });
const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
let serverAhead = 0; // ms between the monitor's clock and this one

function localTime(moment) {
  return moment.getTimezoneOffset() === 0 ? "" : `${clock.format(moment)} ${zone}`;
}

function ago(moment) {
  const s = Math.max(0, Math.round((Date.now() + serverAhead - moment) / 1000));
  if (s < 60) return `${s} s ago`;
  if (s < 3600) return `${Math.floor(s / 60)} min ago`;
  if (s < 172800) return `${Math.floor(s / 3600)} h ago`;
  return `${Math.floor(s / 86400)} d ago`;
}

function beside(time, text) {
  let mark = time.nextElementSibling;
  if (!mark || mark.className !== "beside") {
    if (!text) return;
    mark = document.createElement("span");
    mark.className = "beside";
    time.after(" ", mark);
  }
  if (mark.textContent !== text) mark.textContent = text;
}

function showTimes(root) {
  for (const time of root.querySelectorAll("time")) {
    const moment = new Date(time.textContent);
    const parts = [];
    if (time.classList.contains("ago")) parts.push(ago(moment));
    if (time.classList.contains("local")) parts.push(localTime(moment));
    const text = parts.filter(Boolean).join(", ");
    beside(time, text && `(${text})`);
  }
}

// --- refresh: replace only what changed, so that a hover, a focus or a selection survives ---

const known = new Map(); // id -> markup as the server sent it

function remember(root) {
  for (const part of root.querySelectorAll("[id]")) known.set(part.id, part.outerHTML);
}

function decorate(root) {
  for (const block of root.querySelectorAll(".strip > [title]")) {
    block.dataset.tip = block.title;
    block.removeAttribute("title"); // ours works by touch and keyboard too
  }
  showTimes(root);
}

function sync(parent, fresh) {
  const parts = [];
  for (const next of [...fresh.children]) {
    const here = document.getElementById(next.id);
    const markup = next.outerHTML;
    let part = here;
    if (!here) {
      remember(next);
      decorate(next);
      part = next;
    } else if (known.get(next.id) !== markup) {
      if (next.classList.contains("group")) {
        sync(here, next);
      } else {
        remember(next);
        decorate(next);
        here.replaceWith(next);
        part = next;
      }
    }
    known.set(next.id, markup);
    parts.push(part);
  }
  if (parts.length !== parent.children.length || parts.some((p, i) => p !== parent.children[i])) {
    parent.replaceChildren(...parts);
  }
}

function update(html) {
  const fresh = document.createElement("template");
  fresh.innerHTML = html;
  const focused = document.activeElement?.id;
  sync(live, fresh.content);
  if (focused && document.activeElement === document.body) {
    document.getElementById(focused)?.focus({ preventScroll: true });
  }
  if (!tip.hidden && !chosen?.isConnected) hideTip();
  showTimes(document);
  const { title, icon } = document.getElementById("overall").dataset;
  document.title = `${title} · Endpoint monitor`;
  const favicon = document.getElementById("favicon");
  const href = favicon.getAttribute("href").replace(/\w+\.svg/, `${icon}.svg`);
  if (favicon.getAttribute("href") !== href) favicon.setAttribute("href", href);
}

function stampNow(date) {
  if (isNaN(date)) return;
  serverAhead = date - Date.now();
  asof.textContent = date.toISOString().slice(0, 19) + "Z";
}

let busy = false;

async function refresh() {
  if (busy || document.hidden) return;
  busy = true;
  try {
    const answer = await fetch("/partial/status", { signal: AbortSignal.timeout(TIMEOUT_MS) });
    if (!answer.ok) throw new Error(answer.status);
    const build = answer.headers.get("X-Build");
    if (build && build !== document.documentElement.dataset.build) return location.reload();
    const html = await answer.text();
    stampNow(new Date(answer.headers.get("Date")));
    update(html);
    offline.hidden = true;
    document.body.classList.remove("old");
  } catch {
    const text = `The monitor does not answer. What you see is as of ${asof.textContent}.`;
    if (offline.textContent !== text) offline.textContent = text;
    offline.hidden = false;
    document.body.classList.add("old");
    showTimes(document);
  } finally {
    busy = false;
  }
}

// --- blocks: one tip for mouse, touch and arrow keys ---

let chosen = null;

function showTip(block) {
  chosen?.classList.remove("chosen");
  chosen = block;
  block.classList.add("chosen");
  const local = localTime(new Date(block.dataset.tip.slice(0, 20)));
  tip.textContent = block.dataset.tip + (local && ` (${local})`);
  tip.hidden = false;
  const at = block.parentElement.getBoundingClientRect();
  const middle = block.getBoundingClientRect();
  const left = middle.left + middle.width / 2 - tip.offsetWidth / 2;
  tip.style.left = `${Math.max(8, Math.min(left, innerWidth - tip.offsetWidth - 8))}px`;
  const above = at.top - tip.offsetHeight - 6;
  tip.style.top = `${above >= 4 ? above : at.bottom + 6}px`;
}

function hideTip() {
  chosen?.classList.remove("chosen");
  chosen = null;
  tip.hidden = true;
}

function step(strip, key) {
  const blocks = strip.children;
  const last = blocks.length - 1;
  const at = chosen?.parentElement === strip ? [...blocks].indexOf(chosen) : last + 1;
  const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: last }[key];
  if (to === undefined) return false;
  showTip(blocks[Math.max(0, Math.min(to, last))]);
  return true;
}

for (const kind of ["pointerover", "pointerdown"]) {
  document.addEventListener(kind, (event) => {
    const block = event.target.closest?.("[data-tip]");
    if (block) showTip(block);
    else if (!tip.hidden) hideTip();
  });
}
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") hideTip();
  if (event.target.matches?.("ol.strip") && step(event.target, event.key)) event.preventDefault();
});
document.addEventListener("focusout", hideTip);
addEventListener("scroll", hideTip, { passive: true });

remember(live);
decorate(live);
stampNow(new Date(asof.textContent));
showTimes(document);
setInterval(refresh, REFRESH_MS);
document.addEventListener("visibilitychange", refresh);
