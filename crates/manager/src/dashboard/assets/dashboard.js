// The dashboard: fetches api/v1/state every few seconds and shows it. Names and messages come from users of the
// cluster, so all text goes through textContent or attributes, never through a parser of markup.
"use strict";

const PERIOD_MS = 5000;
const GIB = 2 ** 30;
const CLASSES = ["system", "prod", "mid", "batch", "free"];
const SVG = "http://www.w3.org/2000/svg";
const byId = (id) => document.getElementById(id);
let etag = null;
let paused = false;
let timer = 0;
let shown = null;

/** Creates an element with attributes and children; strings become text. */
function el(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, String(value));
  element.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return element;
}

/** Replaces the content of an element, and keeps the focus on what has the same data-key. */
function put(id, ...children) {
  const parent = byId(id);
  const active = parent.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  parent.replaceChildren(...children);
  if (active) {
    for (const element of parent.querySelectorAll("[data-key]")) {
      if (element.dataset.key === active) element.focus();
    }
  }
}

const digits = (value, most) => value.toLocaleString("en", { maximumFractionDigits: most });
const cores = (value) => digits(value, value < 10 ? 2 : 1);
const gib = (value) => digits(value / GIB, value < 10 * GIB ? 2 : 1);
const when = (seconds) => (seconds ? new Date(seconds * 1000).toLocaleString() : "");

function age(seconds) {
  if (!seconds) return "";
  const past = Math.max(0, Math.round(Date.now() / 1000 - seconds));
  if (past < 120) return `${past} s`;
  if (past < 7200) return `${Math.round(past / 60)} min`;
  return past < 172800 ? `${Math.round(past / 3600)} h` : `${Math.round(past / 86400)} d`;
}

/** Creates a table; a column is [title, content of a row, class]. Rows of kind "stack" are lists in a narrow window. */
function table(label, columns, rows, none, kind = "stack") {
  if (rows.length === 0) return el("p", { class: "hint" }, none);
  const head = el("tr", {}, ...columns.map(([title, , kind]) => el("th", { scope: "col", class: kind || "" }, title)));
  const body = rows.map((row) =>
    el("tr", row.total ? { class: "total" } : {}, ...columns.map(([title, cell, kind]) => {
      const content = cell(row);
      return el("td", { class: kind || "", "data-label": title }, ...(Array.isArray(content) ? content : [content]));
    })));
  return el("table", { "aria-label": label, class: kind }, el("thead", {}, head), el("tbody", {}, ...body));
}

/** Draws usage as stacked areas, with lines for allocatable and for batch resources. */
function chart(title, history, rows, format, unit) {
  const width = 600, height = 240, left = 58, right = 8, top = 12, bottom = 26;
  if (rows.length === 0) return el("p", { class: "hint" }, "No sample yet.");
  const index = (name) => history.columns.indexOf(name);
  const used = (row, upTo) => CLASSES.slice(0, upTo + 1).reduce((sum, name) => sum + row[index(name)], 0);
  const [allocatable, offer] = [index("allocatable"), index("batchAllocatable")];
  const most = Math.max(...rows.map((row) => Math.max(used(row, 4), row[allocatable], row[offer]))) || 1;
  const [first, last] = [history.times[0], history.times[history.times.length - 1]];
  // One sample is drawn as a level over the whole width.
  const times = rows.length === 1 ? [first, first + 1] : history.times;
  const levels = rows.length === 1 ? [rows[0], rows[0]] : rows;
  const span = times[times.length - 1] - times[0] || 1;
  const x = (at) => (left + ((times[at] - times[0]) / span) * (width - left - right)).toFixed(1);
  const y = (value) => (top + (1 - value / most) * (height - top - bottom)).toFixed(1);
  const line = (value) => levels.map((row, at) => `${x(at)},${y(value(row))}`);
  const newest = rows[rows.length - 1];
  const parts = CLASSES.map((name) => `${name} ${format(newest[index(name)])}`).join(", ");
  const text = `Now: ${parts}; allocatable ${format(newest[allocatable])}, offered to batch ${format(newest[offer])} ${unit}.`;
  const chart = svg("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${title}. ${text}` });
  for (const part of [0, 0.25, 0.5, 0.75, 1]) {
    const level = y(part * most);
    chart.append(svg("line", { class: "grid", x1: left, x2: width - right, y1: level, y2: level }));
    chart.append(svg("text", { class: "axis", x: left - 5, y: Number(level) + 4, "text-anchor": "end" }, format(part * most)));
  }
  CLASSES.forEach((name, at) => {
    const upper = line((row) => used(row, at));
    const lower = line((row) => (at === 0 ? 0 : used(row, at - 1))).reverse();
    chart.append(svg("polygon", { class: `area ${name}`, points: [...upper, ...lower].join(" ") }));
  });
  chart.append(svg("polyline", { class: "limit", points: line((row) => row[allocatable]).join(" ") }));
  chart.append(svg("polyline", { class: "halo", points: line((row) => row[offer]).join(" ") }));
  chart.append(svg("polyline", { class: "offer", points: line((row) => row[offer]).join(" ") }));
  const clock = (at) => new Date(at * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  chart.append(svg("text", { class: "axis", x: left, y: height - 5 }, clock(first)));
  if (rows.length > 1) chart.append(svg("text", { class: "axis", x: width - right, y: height - 5, "text-anchor": "end" }, clock(last)));
  return chart;
}

function legend() {
  const key = (mark, text) => el("li", {}, svg("svg", { viewBox: "0 0 22 16", "aria-hidden": "true" }, mark), text);
  const areas = CLASSES.map((name) => key(svg("rect", { class: name, width: 22, height: 16 }), name));
  const stroke = (kind) => svg("line", { class: kind, x1: 0, x2: 22, y1: 8, y2: 8 });
  put("legend", ...areas, key(stroke("limit"), "allocatable"), key(stroke("offer"), "offered to batch"));
}

function nodeButton(name) {
  const button = el("button", { type: "button", class: "plain", "data-key": name }, name);
  button.addEventListener("click", () => select(name, true));
  return button;
}

/** Draws a percentage, which is next to it as text. */
function bar(percent) {
  const width = Math.min(100, Math.max(0, percent));
  return svg("svg", { class: "bar", viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("rect", { class: "track", width: 100, height: 8, rx: 1 }), svg("rect", { class: "used", width, height: 8, rx: 1 }));
}

function nodeTable(label, rows) {
  const percent = (field) => (row) => [`${digits(row[field], 1)} %`, bar(row[field])];
  return table(label, [
    ["Node", (row) => nodeButton(row.name)],
    ["CPU", percent("cpuPercent"), "meter"],
    ["Memory", percent("memoryPercent"), "meter"],
  ], rows, "No node reports.", "");
}

/** Reads a quantity of Kubernetes. */
function quantity(text) {
  const match = /^([+-]?[\d.]+)(?:e([+-]?\d+)|([numkMGTPE]i?|Ki))?$/i.exec(String(text));
  if (!match) return NaN;
  const units = { n: 1e-9, u: 1e-6, m: 1e-3, k: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15, E: 1e18,
    Ki: 2 ** 10, Mi: 2 ** 20, Gi: 2 ** 30, Ti: 2 ** 40, Pi: 2 ** 50, Ei: 2 ** 60 };
  return Number(match[1]) * (match[2] ? 10 ** Number(match[2]) : match[3] ? units[match[3]] ?? NaN : 1);
}

function explanation(node) {
  const parts = [el("h3", {}, `Batch and mid resources of ${node.node}`)];
  if (node.refused) parts.push(el("p", {}, `Nothing is reclaimed: ${node.refused}.`));
  for (const resource of node.resources) {
    const isCpu = resource.name.endsWith("cpu");
    const format = isCpu ? (value) => `${cores(value)} cores` : (value) => `${gib(value)} GiB`;
    const amount = (text) => { const value = quantity(text); return Number.isNaN(value) ? text : format(value); };
    if (resource.computed === null || resource.terms.length === 0) continue;
    const terms = resource.terms.map((term) => ({ ...term, sign: quantity(term.amount) < 0 ? "−" : "+" }));
    const rows = [...terms, { total: true, what: resource.name, amount: resource.computed, why: "", sign: "=" }];
    parts.push(table(`Sum of ${resource.name}`, [
      ["", (row) => row.sign, "sign"],
      [resource.name, (row) => [row.what, el("div", { class: "hint" }, [row.why, row.setting, row.from].filter(Boolean).join(" · "))]],
      ["Amount", (row) => amount(String(row.amount).replace(/^-/, "")), "number"],
    ], rows, "", ""));
  }
  for (const text of [...(node.notes || []), ...(node.problems || [])]) parts.push(el("p", { class: "hint" }, text));
  return parts.map((part) => (part.tagName === "TABLE" ? el("div", { class: "scroll" }, part) : part));
}

/** Shows a list that may be refused or incomplete. */
function list(id, content, state) {
  const parts = [state.error ? el("p", { class: "error" }, state.error) : content];
  if (state.truncated) parts.push(el("p", { class: "hint" }, "There are more objects than were read; the newest may be missing."));
  put(id, ...parts);
}

function render(state) {
  shown = state;
  const { cluster, history } = state;
  byId("summary").textContent = `${cluster.nodes} nodes, ${cluster.reporting} reporting · ${cluster.pods} pods · ${state.pending.total} pending`;
  put("cpu", chart("CPU by class", history, history.cpu, cores, "cores"));
  put("memory", chart("Memory by class", history, history.memory, gib, "GiB"));
  const newest = history.times.length - 1;
  const values = newest < 0 ? [] : history.columns.map((name, at) => ({ name, cpu: history.cpu[newest][at], memory: history.memory[newest][at] }));
  put("latest", table("Latest values", [
    ["", (row) => (row.name === "batchAllocatable" ? "offered to batch" : row.name)],
    ["CPU, cores", (row) => cores(row.cpu), "number"],
    ["Memory, GiB", (row) => gib(row.memory), "number"],
  ], values, "No sample yet.", ""));
  put("hot", nodeTable("Nodes with the highest usage", state.hot));
  put("cold", nodeTable("Nodes with the lowest usage", state.cold));
  const wanted = selected();
  if (state.node) put("node", ...explanation(state.node));
  else put("node", el("p", { class: "hint" }, wanted ? `There is no node “${wanted}”.` : ""));
  const more = (total, rows) => (total > rows.length ? `${rows.length} of ${total}` : String(total));
  byId("pending-count").textContent = more(state.pending.total, state.pending.pods);
  put("pending-pods", table("Pending pods", [
    ["Pod", (row) => `${row.namespace}/${row.name}`],
    ["Class", (row) => [row.priorityClass, row.qos].filter(Boolean).join(" ")],
    ["Age", (row) => age(row.since)],
    ["Reason", (row) => (row.reason || row.message ? [row.reason, row.message].filter(Boolean).join(": ") : "no scheduler has reported"), "wide"],
  ], state.pending.pods, "No pod waits for a node."));
  byId("services-count").textContent = more(state.services.total, state.services.pods);
  put("services", table("Services under the pressure guard", [
    ["Service", (row) => `${row.namespace}/${row.name}`],
    ["Node", (row) => row.node],
    ["Verdict", (row) => row.verdict],
    ["Held back by", (row) => row.held.join(", ") || "nothing"],
  ], state.services.pods, "No node reports a service under the guard."));
  list("events", table("Events of koordlet", [
    ["Time", (row) => when(row.at)],
    ["Object", (row) => row.about],
    ["Reason", (row) => (row.count > 1 ? `${row.reason} ×${row.count}` : row.reason), "word"],
    ["Message", (row) => row.message, "wide"],
  ], state.events.items, "No event in the last hour."), state.events);
  list("jobs", table("PodMigrationJobs", [
    ["Created", (row) => when(row.at)],
    ["Pod", (row) => row.pod],
    ["Phase", (row) => row.phase, "word"],
    ["To node", (row) => row.target],
    ["Reason", (row) => [row.reason, row.message].filter(Boolean).join(": "), "wide"],
  ], state.moves.items, "No PodMigrationJob."), state.moves);
}

function selected() {
  return new URLSearchParams(location.search).get("node");
}

function select(name, focus) {
  const url = new URL(location.href);
  url.searchParams.set("node", name);
  history.replaceState(null, "", url);
  byId("name").value = name;
  etag = null;
  load().then(() => { if (focus) byId("node").focus(); });
}

async function load() {
  clearTimeout(timer);
  const node = selected();
  try {
    const url = "api/v1/state" + (node ? `?node=${encodeURIComponent(node)}` : "");
    const answer = await fetch(url, { headers: etag ? { "If-None-Match": etag } : {}, cache: "no-store" });
    if (answer.status === 401 || answer.status === 403) throw new Error("no permission for the dashboard");
    if (answer.status !== 304) {
      if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
      const state = await answer.json();
      etag = answer.headers.get("ETag");
      render(state);
    }
    say(`Updated ${new Date().toLocaleTimeString()}`, false);
  } catch (error) {
    say(`${shown ? "Not updated" : "No data"}: ${error.message}`, true);
  }
  if (!paused) timer = setTimeout(load, document.hidden ? 6 * PERIOD_MS : PERIOD_MS);
}

/** Shows the status; only problems are announced by screen readers. */
function say(text, problem) {
  const status = byId("status");
  status.setAttribute("aria-live", problem ? "polite" : "off");
  status.className = problem ? "error" : "";
  status.textContent = text;
}

byId("pause").addEventListener("click", (event) => {
  paused = !paused;
  event.currentTarget.setAttribute("aria-pressed", String(paused));
  event.currentTarget.textContent = paused ? "Resume updates" : "Pause updates";
  if (paused) clearTimeout(timer);
  else load();
});
byId("choose").addEventListener("submit", (event) => {
  event.preventDefault();
  const name = byId("name").value.trim();
  if (name) select(name, false);
});
document.addEventListener("visibilitychange", () => { if (!document.hidden && !paused) load(); });
legend();
byId("name").value = selected() || "";
load();
