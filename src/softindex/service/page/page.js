"use strict";
// The page calls the same routes as every other client, and computes nothing but shares and widths.

const SHOWN = 15, SLATE = 10, STEPS = [0.25, 0.5, 1, 2, 4], FIRST_PAUSE = 150;
const get = (id) => document.getElementById(id);
let info = null, round = 0, waiting = null, key = "";

async function ask(path, body) {
  const headers = body ? { "Content-Type": "application/json" } : {};
  if (key) headers.Authorization = "Bearer " + key;
  const answer = await fetch(path, body ? { method: "POST", headers, body: JSON.stringify(body) } : { headers });
  const found = await answer.json();
  if (answer.status === 401) get("key-field").hidden = false;
  if (!answer.ok) throw new Error(found.detail);
  const timing = /dur=([\d.]+)/.exec(answer.headers.get("Server-Timing") || "");
  if (timing) found.milliseconds = Number(timing[1]);
  return found;
}

const identity = (text) => (info.ids === "strings" ? text : Number(text));
const temperature = () => 10 ** Number(get("temperature").value);
const shortNumber = (value) => (value === null || value === undefined ? "–" : Number(value.toPrecision(2)).toString());
const percent = (share) => (share < 0.0005 && share > 0 ? "< 0.1 %" : (100 * share).toFixed(1) + " %");
const milliseconds = (value) => (value === undefined ? "–" : value.toFixed(value < 1 ? 3 : 1) + " ms");

function say(text, wrong) {
  get("message").textContent = text;
  get("message").classList.toggle("wrong", Boolean(wrong));
}

function cell(kind, text, row) {
  const made = document.createElement(kind);
  made.textContent = text;
  row.append(made);
  return made;
}

function bar(row, share, largest, kind) {
  const made = cell("td", "", row);
  made.className = kind;
  const value = document.createElement("span");
  value.className = "value";
  value.textContent = percent(share);
  const track = document.createElement("span"), length = document.createElement("span");
  track.className = "track";
  length.className = "bar";
  track.setAttribute("aria-hidden", "true");
  length.style.width = (largest ? (100 * share) / largest : 0).toFixed(2) + "%";
  track.append(length);
  made.append(value, track);
}

function showBest(ids, probabilities, shares) {
  const body = get("best").tBodies[0], largest = Math.max(...probabilities, ...shares);
  body.replaceChildren();
  ids.forEach((id, place) => {
    const row = body.insertRow(), name = document.createElement("th");
    name.scope = "row";
    name.textContent = id;
    row.append(name);
    bar(row, probabilities[place], largest, "probability");
    bar(row, shares[place], largest, "drawn");
  });
}

function showSlates(slates, best) {
  const table = get("slates"), head = document.createElement("tr"), top = new Set(best.slice(0, SLATE));
  const corner = cell("th", "Place", head);
  corner.scope = "col";
  slates.forEach((slate, place) => {
    const made = cell("th", "t = " + shortNumber(slate.temperature), head);
    made.scope = "col";
    if (STEPS[place] === 1) made.className = "now";
  });
  table.tHead.replaceChildren(head);
  table.tBodies[0].replaceChildren();
  for (let step = 0; step < slates[0].ids.length; step++) {
    const row = table.tBodies[0].insertRow(), number = document.createElement("th");
    number.scope = "row";
    number.textContent = step + 1;
    row.append(number);
    slates.forEach((slate, place) => {
      const made = cell("td", slate.ids[step], row);
      made.classList.toggle("top", top.has(slate.ids[step]));
      made.classList.toggle("now", STEPS[place] === 1);
    });
  }
  // On a phone the table is wider than the page: show the present temperature and its neighbours.
  const frame = table.parentElement, now = head.querySelector(".now");
  frame.scrollLeft = now.offsetLeft + now.offsetWidth / 2 - frame.clientWidth / 2;
}

async function draw() {
  const own = ++round, item = identity(get("item").value), t = temperature(), method = get("method").value;
  const n = Math.min(Number(get("draws").value), info.limits.n), seed = Number(get("seed").value) || 0;
  const k = Math.min(SHOWN, info.items), law = { item, temperature: t, method };
  say("Drawing.");
  try {
    const [best, draws] = await Promise.all([
      ask("v1/top-k", { item, k, temperature: t }),
      ask("v1/sample", { ...law, n, seed }),
    ]);
    const exact = { item, temperature: t, method: "exact" };
    const truth = await ask("v1/log-prob", { ...exact, ids: best.ids });
    if (own !== round) return;
    const probabilities = truth.log_prob.map((value) => (typeof value === "number" ? Math.exp(value) : 0));
    const counts = new Map();
    draws.ids.forEach((id) => counts.set(id, (counts.get(id) || 0) + 1));
    showBest(best.ids, probabilities, best.ids.map((id) => (counts.get(id) || 0) / n));
    const mass = probabilities.reduce((sum, value) => sum + value, 0);
    get("mass").textContent = percent(Math.min(mass, 1));
    get("stated").textContent = draws.error === null ? "none" : shortNumber(draws.error);
    get("measured").textContent = "not measured";
    const size = Math.min(SLATE, info.items), slates = [];
    for (const factor of STEPS) {
      const warmth = t * factor;
      const slate = await ask("v1/sample", { ...law, temperature: warmth, n: size, replace: false, seed });
      slates.push({ temperature: warmth, ids: slate.ids });
    }
    const one = await ask("v1/sample", { ...law, seed }), slow = await ask("v1/sample", { ...exact, seed });
    if (own !== round) return;
    showSlates(slates, best.ids);
    get("latency").textContent = milliseconds(one.milliseconds);
    get("latency-exact").textContent = milliseconds(slow.milliseconds);
    get("scored").textContent = one.items_scored.toLocaleString("en") + " of " + info.items.toLocaleString("en");
    say("Drew " + n + " items, " + counts.size + " different ones. The " + k + " most probable hold " +
      percent(Math.min(mass, 1)) + " of the mass.");
  } catch (error) {
    if (own === round) say(error.message, true);
  }
}

async function measure() {
  say("Measuring: the exact softmax scores every item.");
  try {
    const law = { item: identity(get("item").value), temperature: temperature(), method: get("method").value };
    const found = await ask("v1/measure", law);
    get("stated").textContent = found.stated === null ? "none" : shortNumber(found.stated);
    get("measured").textContent = shortNumber(found.measured);
    say("Measured total variation " + shortNumber(found.measured) + "; the method states " +
      (found.stated === null ? "none" : shortNumber(found.stated)) + ".");
  } catch (error) {
    say(error.message, true);
  }
}

async function complete() {
  const found = await ask("v1/ids?text=" + encodeURIComponent(get("item").value));
  get("names").replaceChildren(...found.ids.map((id) => new Option(String(id))));
  return found.ids;
}

function soon(work) {
  clearTimeout(waiting);
  waiting = setTimeout(work, FIRST_PAUSE);
}

function showTemperature() {
  get("temperature-value").textContent = shortNumber(temperature());
  get("temperature").setAttribute("aria-valuetext", shortNumber(temperature()));
}

async function start() {
  try {
    info = await ask("v1/info");
    const kinds = { index: "an index", catalogue: "a catalogue", "learned-similarity": "a learned-similarity index" };
    get("served").textContent = "This server has " + kinds[info.kind] + " of " + info.items.toLocaleString("en") +
      " items" + (info.dim ? " in " + info.dim + " dimensions" : "") + ".";
    get("method").replaceChildren(...info.methods.map((name) => new Option(name, name, false, name === "sd-2ls")));
    if (info.kind === "learned-similarity") {
      say("Items of a learned-similarity index cannot be queries, so there is nothing to show here.", true);
      return;
    }
    if (!info.items) {
      say("The catalogue holds no items yet.", true);
      return;
    }
    const names = await complete();
    if (!get("item").value) get("item").value = String(names[Math.floor(names.length / 2)]);
    await draw();
  } catch (error) {
    say(error.message, true);
  }
}

get("temperature").addEventListener("input", () => { showTemperature(); soon(draw); });
for (const id of ["method", "draws", "seed"]) get(id).addEventListener("change", draw);
get("item").addEventListener("input", () => soon(() => complete().catch((error) => say(error.message, true))));
get("item").addEventListener("change", draw);
get("measure").addEventListener("click", measure);
get("key").addEventListener("change", () => { key = get("key").value; start(); });
get("options").addEventListener("submit", (event) => {
  event.preventDefault();
  get("seed").value = String((Number(get("seed").value) || 0) + 1);
  draw();
});
showTemperature();
start();
