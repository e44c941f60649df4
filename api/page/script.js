"use strict";
// Everything that comes from the server becomes text, but for the part about the model, which the server has escaped.

const POLL_MS = 2000;
const POINTS = 60;
const FIELDS = 8;
const PARTS = 15;
const SVG = "http://www.w3.org/2000/svg";
const PREDICTIONS = ["/v1/predict", "/v1/predict/arrow"];

let token = null; // in memory alone, both of them
let adminToken = null;
let served = []; // as /v1/models lists it; empty where the application has one model
let chosen = null; // the label of the version that the part about the model shows
let shownId = null;
let before = null; // the metrics of the poll before, and when that was
const lines = { requests: [], rows: [] };

const at = (id) => document.getElementById(id);

function element(name, text, attributes = {}) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function drawn(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

class Refused extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

async function ask(path, { body, bearer = token } = {}) {
  const headers = {};
  if (bearer) headers.authorization = `Bearer ${bearer}`;
  if (chosen) headers["ctr-version"] = chosen;
  if (body !== undefined) headers["content-type"] = "application/json";
  const options = { headers, cache: "no-store" };
  if (body !== undefined) Object.assign(options, { method: "POST", body: JSON.stringify(body) });
  const response = await fetch(path, options);
  if (!response.ok) {
    const said = await response.json().catch(() => ({}));
    throw new Refused(response.status, said.detail || `status ${response.status}`);
  }
  return response;
}

function number(value, digits = 3) {
  if (value === undefined || value === null || Number.isNaN(value)) return "-";
  if (value === 0) return "0";
  return Math.abs(value) >= 100 ? Math.round(value).toLocaleString("en") : Number(value.toPrecision(digits)).toString();
}

// ---- metrics

function parsed(text) {
  const samples = new Map();
  for (const line of text.split("\n")) {
    const parts = /^([a-z_]+)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (parts === null) continue;
    const labels = {};
    for (const [, name, value] of (parts[2] || "").matchAll(/([a-z_]+)="((?:[^"\\]|\\.)*)"/g)) {
      labels[name] = value.replace(/\\(.)/g, (_, letter) => (letter === "n" ? "\n" : letter));
    }
    if (!samples.has(parts[1])) samples.set(parts[1], []);
    samples.get(parts[1]).push({ labels, value: Number(parts[3]) });
  }
  return samples;
}

const sum = (metrics, name, holds = () => true) =>
  (metrics.get(name) || []).filter((each) => holds(each.labels)).reduce((total, each) => total + each.value, 0);

const isPrediction = (labels) => PREDICTIONS.includes(labels.path);

// Upper bounds with counts of their own, from counts that include those of smaller bounds.
function buckets(metrics, name, holds) {
  const counts = new Map();
  for (const { labels, value } of metrics.get(`${name}_bucket`) || []) {
    if (holds(labels)) counts.set(Number(labels.le.replace("+Inf", "Infinity")), (counts.get(Number(labels.le.replace("+Inf", "Infinity"))) || 0) + value);
  }
  const bounds = [...counts.keys()].sort((a, b) => a - b);
  return bounds.map((bound, i) => ({ bound, count: counts.get(bound) - (i ? counts.get(bounds[i - 1]) : 0) }));
}

function quantile(parts, share) {
  const total = parts.reduce((all, part) => all + part.count, 0);
  if (!total) return undefined;
  let reached = 0;
  for (const [i, part] of parts.entries()) {
    const low = i ? parts[i - 1].bound : 0;
    if (reached + part.count >= share * total) {
      const high = Number.isFinite(part.bound) ? part.bound : low;
      return low + ((share * total - reached) / part.count) * (high - low);
    }
    reached += part.count;
  }
  return undefined;
}

function spark(id, values) {
  const most = Math.max(...values, 1e-9);
  const points = values.map((value, i) => `${120 - (values.length - 1 - i) * (120 / (POINTS - 1))},${30 - 27 * (value / most)}`);
  const first = points[0].split(",")[0];
  at(id).replaceChildren(
    drawn("polygon", { points: `${first},32 ${points.join(" ")} 120,32`, class: "under" }),
    drawn("polyline", { points: points.join(" "), class: "spark" }),
  );
}

function showNow(metrics, time) {
  const now = {
    time,
    requests: sum(metrics, "ctr_requests_total", isPrediction),
    refused: sum(metrics, "ctr_requests_total", (l) => isPrediction(l) && !l.status.startsWith("2")),
    rows: sum(metrics, "ctr_rows_total"),
    latency: buckets(metrics, "ctr_request_seconds", isPrediction),
  };
  at("failures").textContent = number(sum(metrics, "ctr_requests_total", (l) => l.status.startsWith("5") && l.status !== "503"));
  if (before !== null && time > before.time) {
    const rate = (name) => Math.max(0, (now[name] - before[name]) / (time - before.time)) * 1000;
    for (const name of ["requests", "rows"]) {
      lines[name].push(rate(name));
      lines[name].splice(0, lines[name].length - POINTS);
      at(name).textContent = number(rate(name));
      spark(`${name}-line`, lines[name]);
    }
    at("errors").textContent = number(rate("refused"));
    const counts = new Map(before.latency.map((part) => [part.bound, part.count]));
    const latency = now.latency.map((part) => ({ bound: part.bound, count: part.count - (counts.get(part.bound) || 0) }));
    const ms = (share) => number(1000 * quantile(latency, share));
    at("latency").textContent = ms(0.5);
    at("latency99").textContent = ms(0.99);
  }
  before = now;
  const memory = sum(metrics, "ctr_memory_bytes");
  at("memory").textContent = memory ? number(memory / 1e6) : "-";
  const predictions = sum(metrics, "ctr_prediction_count");
  at("mean").textContent = predictions ? number(sum(metrics, "ctr_prediction_sum") / predictions, 4) : "-";
  at("mean-of").textContent = predictions ? `of ${predictions.toLocaleString("en")} that were looked at` : "";
  showScores(metrics);
  showDrift(metrics);
}

function bar(share, kind) {
  const chart = drawn("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" });
  chart.append(drawn("rect", { x: 0, y: 0, width: 100 * Math.min(1, share), height: 10, class: kind }));
  return chart;
}

function showScores(metrics) {
  const ids = [...new Set((metrics.get("ctr_prediction_count") || []).filter((s) => s.value).map((s) => s.labels.id))];
  const current = ids.filter((id) => !served.length || served.some((each) => each.version === id));
  const columns = current.map((id) => {
    const parts = buckets(metrics, "ctr_prediction", (labels) => labels.id === id).filter((part) => part.bound <= 1);
    const total = parts.reduce((all, part) => all + part.count, 0) || 1;
    return { id, parts: parts.map((part) => ({ bound: part.bound, share: part.count / total })) };
  });
  if (!columns.length) {
    at("scores").replaceChildren(element("p", "No prediction yet.", { class: "soft" }));
    return;
  }
  const most = Math.max(...columns.flatMap((column) => column.parts.map((part) => part.share)), 1e-9);
  const rows = columns[0].parts.map((part, i) => {
    const row = element("div", undefined, { class: "row" });
    const low = i ? columns[0].parts[i - 1].bound : 0;
    const bars = element("div", undefined, { class: "bars" });
    columns.forEach((column, k) => bars.append(bar((column.parts[i]?.share || 0) / most, k ? "other" : "main")));
    const shares = columns.map((column) => `${(100 * (column.parts[i]?.share || 0)).toFixed(1)}%`).join(" ");
    row.append(element("span", `${low} to ${part.bound}`), bars, element("span", columns.length > 1 ? "" : shares));
    row.title = columns.map((column) => `${column.id}: ${(100 * (column.parts[i]?.share || 0)).toFixed(2)}%`).join(", ");
    return row;
  });
  if (columns.length > 1) rows.push(element("p", columns.map((c, k) => `${k ? "orange" : "blue"}: ${c.id}`).join(", "), { class: "soft" }));
  at("scores").replaceChildren(...rows);
}

function showDrift(metrics) {
  const id = served.length ? served[0].version : undefined;
  const of = (name) => (metrics.get(name) || []).filter((each) => id === undefined || each.labels.id === id);
  const expected = new Map(of("ctr_field_unseen_expected").map((each) => [each.labels.field, each.value]));
  const unseen = new Map(of("ctr_field_unseen_total").map((each) => [each.labels.field, each.value]));
  const fields = of("ctr_field_features_total")
    .filter((each) => each.value > 0)
    .map((each) => ({ name: each.labels.field, share: (unseen.get(each.labels.field) || 0) / each.value, of: each.value }))
    .map((each) => ({ ...each, more: each.share - (expected.get(each.name) || 0) }))
    .sort((a, b) => b.more - a.more);
  if (!fields.length) {
    at("drift").replaceChildren(element("p", "No row was looked at yet.", { class: "soft" }));
    return;
  }
  const table = element("table");
  const head = element("tr");
  for (const words of ["Field", "asked", "hold-out"]) head.append(element("th", words, { scope: "col" }));
  table.append(element("thead"));
  table.tHead.append(head);
  for (const each of fields.slice(0, FIELDS)) {
    const row = table.insertRow();
    row.append(element("td", each.name), element("td", `${(100 * each.share).toFixed(1)}%`));
    row.append(element("td", expected.has(each.name) ? `${(100 * expected.get(each.name)).toFixed(1)}%` : "-"));
  }
  const words = `Fields with the largest increase, of ${fields.length}. One row is looked at in 50 ms at most.`;
  at("drift").replaceChildren(table, element("p", words, { class: "soft" }));
}

// ---- versions

const MEASURES = [
  ["logloss", "Log loss"],
  ["normalized_entropy", "Normalized entropy"],
  ["auc", "AUC"],
  ["calibration", "Calibration"],
];

function age(moment) {
  const minutes = (Date.now() - Date.parse(moment)) / 60000;
  if (Number.isNaN(minutes)) return "-";
  if (minutes < 1) return "less than 1 min";
  if (minutes < 60) return `${Math.floor(minutes)} min`;
  return minutes < 2880 ? `${Math.floor(minutes / 60)} h` : `${Math.floor(minutes / 1440)} days`;
}

function showVersions(described) {
  served = described.served;
  const table = element("table");
  const head = element("tr");
  head.append(element("td"));
  for (const each of served) head.append(element("th", each.label, { scope: "col" }));
  table.append(element("thead"));
  table.tHead.append(head);
  const line = (words, value) => {
    const row = table.insertRow();
    row.append(element("th", words, { scope: "row" }));
    for (const each of served) {
      const cell = row.insertCell();
      const shown = value(each);
      if (shown instanceof Node) cell.append(shown);
      else cell.textContent = shown;
    }
  };
  line("Version", (each) => each.version);
  line("Share of the requests", (each) => `${Number((100 * each.share).toFixed(2))}%`);
  line("Served for", (each) => age(each.since));
  line("Made", (each) => (each.created ? `${age(each.created)} ago` : "-"));
  for (const [name, words] of MEASURES) line(words, (each) => (each.metrics?.[name] === undefined || each.metrics[name] === null ? "-" : each.metrics[name].toFixed(5)));
  if (served.length > 1) {
    line("", (each) => {
      const button = element("button", (chosen || served[0].label) === each.label ? "Shown below" : "Show", { type: "button", class: "second" });
      button.addEventListener("click", () => {
        chosen = each.label;
        shownId = null;
        refresh();
      });
      return button;
    });
  }
  const parts = [table];
  if (described.failed.length) parts.push(element("p", `Not served, as they failed: ${described.failed.join(", ")}`, { class: "problem" }));
  for (const [version, why] of Object.entries(described.reasons || {})) parts.push(element("p", `${version}: ${why}`, { class: "problem" }));
  const held = document.activeElement?.closest?.("#versions") !== null && document.activeElement !== document.body;
  if (!held) at("versions").replaceChildren(...parts);
  if (chosen !== null && !served.some((each) => each.label === chosen)) chosen = null;
}

async function showRegistry() {
  const described = await (await ask("v1/models?all", { bearer: adminToken })).json();
  if (described.available === undefined) {
    at("registry").replaceChildren(element("p", "This server serves a folder; a registry has labels to change.", { class: "soft" }));
    return;
  }
  const table = element("table");
  const head = element("tr");
  for (const words of ["Version", "Made", "Log loss", "Labels", ""]) head.append(element("th", words, { scope: "col" }));
  table.append(element("thead"));
  table.tHead.append(head);
  const labels = [...new Set([...served.map((each) => each.label), ...described.available.flatMap((each) => each.labels)])];
  for (const each of described.available) {
    const row = table.insertRow();
    row.append(element("td", each.version), element("td", each.created ? `${age(each.created)} ago` : "-"));
    row.append(element("td", each.metrics?.logloss === undefined ? "-" : each.metrics.logloss.toFixed(5)), element("td", each.labels.join(", ")));
    const buttons = element("td");
    for (const label of labels.filter((name) => !each.labels.includes(name))) {
      buttons.append(changing(`Make ${label}`, label, { version: each.version }), " ");
    }
    row.append(buttons);
  }
  const back = element("div", undefined, { class: "line" });
  for (const label of labels) back.append(changing(`Roll ${label} back`, label, { rollback: true }));
  const scrolled = element("div", undefined, { class: "wide" });
  scrolled.append(table);
  at("registry").replaceChildren(scrolled, back);
}

function changing(words, label, body) {
  const button = element("button", words, { type: "button", class: "second" });
  button.addEventListener("click", async () => {
    button.disabled = true;
    try {
      const changed = await (await ask(`v1/models/${encodeURIComponent(label)}`, { body, bearer: adminToken })).json();
      at("admin-said").textContent = `${changed.label} is ${changed.version}; it is served once it has been tried.`;
      await showRegistry();
    } catch (problem) {
      at("admin-said").textContent = problem.message;
    }
    button.disabled = false;
  });
  return button;
}

// ---- the model, and a row to try it with

function isShown() {
  return served.length ? (served.find((each) => each.label === chosen) || served[0]).version : undefined;
}

async function showModel() {
  const version = isShown();
  if (shownId !== null && shownId === (version ?? shownId)) return;
  const response = await ask("page/model");
  at("model").innerHTML = await response.text();
  shownId = version ?? "";
  const form = at("example");
  const rows = JSON.parse(form.dataset.rows);
  let next = 0;
  const fill = () => {
    for (const input of form.querySelectorAll("input")) input.value = rows[next][input.name] ?? "";
    next = (next + 1) % rows.length;
    at("result").replaceChildren();
  };
  fill();
  at("another").addEventListener("click", fill);
  at("another").hidden = rows.length < 2;
  form.addEventListener("reset", () => at("result").replaceChildren());
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      showResult(await explained(form));
    } catch (problem) {
      at("result").replaceChildren(element("p", problem.message, { class: "problem" }));
    }
  });
}

async function explained(form) {
  const row = {};
  for (const input of form.querySelectorAll("input")) {
    if (input.value === "") continue;
    row[input.name] = input.dataset.kind === "list" && input.value.startsWith("[") ? JSON.parse(input.value) : input.value;
  }
  const [predicted, reasons] = await Promise.all([ask("v1/predict", { body: { rows: [row] } }), ask("v1/explain", { body: { rows: [row] } })]);
  return { prediction: (await predicted.json()).predictions[0], ...(await reasons.json()).explanations[0], probability: undefined };
}

function showResult(result) {
  const parts = result.contributions.slice(0, PARTS);
  const most = Math.max(...parts.map((part) => Math.abs(part.contribution)), 1e-9);
  const rows = parts.map((part) => {
    const row = element("div", undefined, { class: "row" });
    const name = part.text && part.field !== part.text ? `${part.field} = ${part.text}` : part.field === "(bias)" ? "(bias)" : `${part.field} ${part.feature}`;
    const chart = drawn("svg", { viewBox: "-50 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" });
    const width = 50 * (Math.abs(part.contribution) / most);
    chart.append(drawn("rect", { x: part.contribution < 0 ? -width : 0, y: 0, width, height: 10, class: part.contribution < 0 ? "less" : "more" }));
    chart.append(drawn("line", { x1: 0, x2: 0, y1: 0, y2: 10 }));
    const label = element("span", name, { title: name });
    row.append(label, chart, element("span", (part.contribution < 0 ? "" : "+") + part.contribution.toFixed(3)));
    return row;
  });
  const list = element("div", undefined, { class: "parts" });
  list.append(...rows);
  const rest = result.contributions.length - parts.length;
  const unseen = result.contributions.filter((part) => part.weight === 0).length;
  const words = `Log-odds ${result.log_odds.toFixed(4)} before calibration; what each feature adds to them`;
  at("result").replaceChildren(
    element("p", `${(100 * result.prediction).toFixed(2)}%`, { class: "probability" }),
    element("p", `${words}${rest > 0 ? `, and ${rest} more` : ""}. ${unseen} of ${result.contributions.length} features have no weight.`, { class: "soft" }),
    list,
  );
}

// ---- the whole

async function refresh() {
  try {
    const metrics = parsed(await (await ask("metrics")).text());
    const models = await ask("v1/models").catch((problem) => {
      if (problem.status === 404) return null; // one model, in another application
      throw problem;
    });
    if (models !== null) showVersions(await models.json());
    at("administration").hidden = models === null;
    at("content").hidden = false;
    at("login").hidden = true;
    showNow(metrics, Date.now());
    await showModel();
    const ready = await ask("readyz").then(() => null, (problem) => problem.message);
    at("state").textContent = ready ?? "ready";
    at("state").className = ready === null ? "chip good" : "chip bad";
    at("uptime").textContent = served.length ? `${served[0].label} for ${age(served[0].since)}` : "";
  } catch (problem) {
    at("state").className = "chip bad";
    at("state").textContent = problem instanceof Refused ? problem.message : "the server does not answer";
    if (problem.status === 401) {
      at("content").hidden = true;
      at("login").hidden = false;
      at("login-problem").textContent = token === null ? "" : "The server does not accept this token.";
      at("state").textContent = "locked";
      token = null;
    }
  }
}

async function poll() {
  if (!document.hidden && at("login").hidden) await refresh();
  setTimeout(poll, POLL_MS);
}

at("login").addEventListener("submit", (event) => {
  event.preventDefault();
  token = at("token").value.trim();
  at("token").value = "";
  refresh();
});
at("admin").addEventListener("submit", async (event) => {
  event.preventDefault();
  adminToken = at("admin-token").value.trim();
  try {
    await showRegistry();
    at("admin-token").value = "";
    at("admin").hidden = true;
    at("admin-said").textContent = "";
  } catch (problem) {
    at("admin-said").textContent = problem.message;
  }
});
poll();
