"use strict";
// Everything that comes from the server becomes text, but for the part about the model, which the server has escaped.

const POLL_MS = 2000;
const POINTS = 60;
const WINDOW_MS = 60_000;
const FIELDS = 8;
const PARTS = 15;
const SVG = "http://www.w3.org/2000/svg";
const PREDICTIONS = /^\/v1\/predict|^\/v2\/.*\/infer$/;

let token = null; // in memory alone, both of them
let adminToken = null;
let served = []; // as /v1/models lists it; empty where the application has one model
let chosen = null; // the label whose version the part about the model shows; null: the first
let shownId = null; // of that version, once it is there
let polls = []; // of the last minute: the metrics, and when they were read
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

// `label`: of the version that is to answer; otherwise a canary may, as for anybody.
async function ask(path, { body, bearer = token, label } = {}) {
  const headers = {};
  if (bearer) headers.authorization = `Bearer ${bearer}`;
  if (label) headers["ctr-version"] = label;
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

const isPrediction = (labels) => PREDICTIONS.test(labels.path);

// Upper bounds with counts of their own, from counts that include those of smaller bounds.
function buckets(metrics, name, holds) {
  const counts = new Map();
  for (const { labels, value } of metrics.get(`${name}_bucket`) || []) {
    const bound = Number(labels.le.replace("+Inf", "Infinity"));
    if (holds(labels)) counts.set(bound, (counts.get(bound) || 0) + value);
  }
  const bounds = [...counts.keys()].sort((a, b) => a - b);
  return bounds.map((bound, i) => ({ bound, count: counts.get(bound) - (i ? counts.get(bounds[i - 1]) : 0) }));
}

// The same for what was counted between two polls.
function bucketsBetween(first, last, name, holds) {
  const counts = new Map(buckets(first, name, holds).map((part) => [part.bound, part.count]));
  return buckets(last, name, holds).map(({ bound, count }) => ({ bound, count: count - (counts.get(bound) || 0) }));
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

const requestsOf = (metrics) => sum(metrics, "ctr_requests_total", isPrediction);
const isRefused = (labels) => (isPrediction(labels) || labels.path === "connection") && !labels.status.startsWith("2");
const isFailure = (labels) => labels.status.startsWith("5") && labels.status !== "503";

function showNow(metrics, time) {
  const before = polls.at(-1);
  if (before && requestsOf(metrics) < requestsOf(before.metrics)) polls = []; // the server was started again
  polls = [...polls.filter((each) => each.time > time - WINDOW_MS), { time, metrics }];
  const first = polls[0];
  if (polls.length > 1) {
    const rate = (since, of) => (of(metrics) - of(since.metrics)) / ((time - since.time) / 1000);
    for (const [name, of] of [["requests", requestsOf], ["rows", (each) => sum(each, "ctr_rows_total")]]) {
      const now = Math.max(0, rate(polls.at(-2), of));
      lines[name].push(now);
      lines[name].splice(0, lines[name].length - POINTS);
      at(name).textContent = number(now);
      spark(`${name}-line`, lines[name]);
    }
    at("errors").textContent = number(rate(first, (each) => sum(each, "ctr_requests_total", isRefused)));
    const latency = bucketsBetween(first.metrics, metrics, "ctr_request_seconds", isPrediction);
    at("latency").textContent = number(1000 * quantile(latency, 0.5));
    const within = number(1000 * quantile(latency, 0.99));
    at("latency-of").textContent = within === "-" ? "no request in the last minute" : `median of the last minute; 99% within ${within} ms`;
  }
  at("failures").textContent = number(sum(metrics, "ctr_requests_total", isFailure));
  const memory = sum(metrics, "ctr_memory_bytes");
  at("memory").textContent = memory ? number(memory / 1e6) : "-";
  showScores(first.metrics, metrics);
  showDrift(metrics);
}

function bar(share, kind) {
  const chart = drawn("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" });
  chart.append(drawn("rect", { x: 0, y: 0, width: 100 * Math.min(1, share), height: 10, class: kind }));
  return chart;
}

// Of the last minute, or since the server's start if there was nothing in that minute.
function showScores(first, metrics) {
  const ids = [...new Set((metrics.get("ctr_prediction_count") || []).filter((s) => s.value).map((s) => s.labels.id))];
  const current = ids.filter((id) => !served.length || served.some((each) => each.version === id));
  const total = (since, name) => current.reduce((all, id) => all + sum(metrics, name, (l) => l.id === id) - sum(since, name, (l) => l.id === id), 0);
  const isRecent = total(first, "ctr_prediction_count") > 0;
  const since = isRecent ? first : new Map();
  const predictions = total(since, "ctr_prediction_count");
  const when = isRecent ? "in the last minute" : "since the start";
  at("mean").textContent = predictions ? number(total(since, "ctr_prediction_sum") / predictions, 4) : "-";
  at("mean-of").textContent = predictions ? `${predictions.toLocaleString("en")} sampled ${when}` : "";
  if (!predictions) {
    at("scores").replaceChildren(element("p", "No predictions yet.", { class: "soft" }));
    return;
  }
  const columns = current.map((id) => {
    const parts = bucketsBetween(since, metrics, "ctr_prediction", (l) => l.id === id).filter((part) => part.bound <= 1);
    const all = parts.reduce((sum, part) => sum + part.count, 0) || 1;
    return { id, parts: parts.map((part) => ({ bound: part.bound, share: part.count / all })) };
  });
  const most = Math.max(...columns.flatMap((column) => column.parts.map((part) => part.share)), 1e-9);
  const percent = (share) => `${(100 * share).toFixed(share >= 0.0995 ? 0 : 1)}%`;
  const rows = columns[0].parts.map((part, i) => {
    const row = element("div", undefined, { class: "row" });
    const low = i ? columns[0].parts[i - 1].bound : 0;
    const bars = element("div", undefined, { class: "bars" });
    columns.forEach((column, k) => bars.append(bar(column.parts[i].share / most, k ? "other" : "main")));
    row.append(element("span", `${low}–${part.bound}`), bars, element("span", columns.map((column) => percent(column.parts[i].share)).join(" / ")));
    return row;
  });
  const legend = element("p", undefined, { class: "soft legend" });
  if (columns.length > 1) {
    columns.forEach((column, k) => {
      const entry = element("span", undefined, { class: "key" });
      entry.append(bar(1, k ? "other" : "main"), nameOf(column.id));
      legend.append(entry);
    });
  }
  legend.append(`Share of the predictions in each range, ${when}.`);
  at("scores").replaceChildren(...rows, legend);
}

function nameOf(id) {
  const labels = served.filter((each) => each.version === id).map((each) => each.label);
  return labels.length ? `${labels.join(", ")} (${id})` : id;
}

function showDrift(metrics) {
  const of = (name) => metrics.get(name) || [];
  const expected = new Map(of("ctr_field_unseen_expected").map((each) => [each.labels.field, each.value]));
  const unseen = new Map(of("ctr_field_unseen_total").map((each) => [each.labels.field, each.value]));
  const fields = of("ctr_field_features_total")
    .filter((each) => each.value > 0)
    .map((each) => ({ name: each.labels.field, share: (unseen.get(each.labels.field) || 0) / each.value, of: each.value }))
    .map((each) => ({ ...each, more: each.share - (expected.get(each.name) || 0) }))
    .sort((a, b) => b.more - a.more);
  if (!fields.length) {
    at("drift").replaceChildren(element("p", "No rows sampled yet.", { class: "soft" }));
    return;
  }
  const table = element("table");
  const head = element("tr");
  for (const words of ["Field", "requests", "hold-out"]) head.append(element("th", words, { scope: "col" }));
  table.append(element("thead"));
  table.tHead.append(head);
  for (const each of fields.slice(0, FIELDS)) {
    const row = table.insertRow();
    row.append(element("td", each.name), element("td", `${(100 * each.share).toFixed(1)}%`));
    row.append(element("td", expected.has(each.name) ? `${(100 * expected.get(each.name)).toFixed(1)}%` : "-"));
  }
  const words = `Share of a field's values for which the model has no weight, since the start. Largest increases over the hold-out first, of ${fields.length} fields.`;
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
  if (minutes < 1) return "< 1 min";
  if (minutes < 60) return `${Math.floor(minutes)} min`;
  return minutes < 2880 ? `${Math.floor(minutes / 60)} h` : `${Math.floor(minutes / 1440)} days`;
}

function showVersions(described, metrics) {
  served = described.served;
  if (!served.some((each) => each.label === chosen)) chosen = null;
  const shown = shownVersion();
  const table = element("table");
  const head = element("tr");
  head.append(element("td"));
  for (const each of served) head.append(element("th", each.label, { scope: "col" }));
  table.append(element("thead"));
  table.tHead.append(head);
  const line = (words, value) => {
    const row = table.insertRow();
    row.append(element("th", words, { scope: "row" }));
    for (const each of served) row.insertCell().append(value(each));
  };
  line("Version", (each) => each.version);
  line("Share of requests", (each) => `${Number((100 * each.share).toFixed(2))}%`);
  line("Served for", (each) => age(each.since));
  line("Created", (each) => (each.created ? `${age(each.created)} ago` : "-"));
  for (const [name, words] of MEASURES) line(words, (each) => each.metrics?.[name]?.toFixed(5) ?? "-");
  const mean = (name, holds) => number(sum(metrics, `${name}_sum`, holds) / sum(metrics, `${name}_count`, holds), 4);
  line("Mean prediction", (each) => mean("ctr_prediction", (labels) => labels.id === each.version));
  if (sum(metrics, "ctr_shadow_difference_count")) {
    line("Mean difference to served", (each) => (each.label === "shadow" ? mean("ctr_shadow_difference") : "-"));
  }
  if (served.length > 1) {
    line("Shown below", (each) => {
      const button = element("button", "Show", { type: "button", class: "second", id: `show ${each.label}`, "aria-pressed": each === shown });
      button.addEventListener("click", () => {
        chosen = each.label;
        refresh();
      });
      return button;
    });
  }
  const parts = [table];
  if (described.failed.length) parts.push(element("p", `Not served, because they failed their test: ${described.failed.join(", ")}`, { class: "problem" }));
  for (const [version, why] of Object.entries(described.reasons || {})) parts.push(element("p", `${version}: ${why}`, { class: "problem" }));
  replaceIn(at("versions"), ...parts);
}

// The version that the part about the model shows; undefined where the application has one model.
const shownVersion = () => served.find((each) => each.label === chosen) || served[0];

// Whoever is at a button with the keyboard stays there.
function replaceIn(place, ...parts) {
  const focused = place.contains(document.activeElement) ? document.activeElement.id : "";
  place.replaceChildren(...parts);
  if (focused) at(focused)?.focus();
}

async function showRegistry(bearer = adminToken) {
  const described = await (await ask("v1/models?all", { bearer })).json();
  if (described.available === undefined) {
    at("registry").replaceChildren(element("p", "Versions can be promoted and rolled back here when the server is started with --registry.", { class: "soft" }));
    return;
  }
  const table = element("table");
  const head = element("tr");
  for (const words of ["Version", "Created", "Log loss", "Labels", ""]) head.append(element("th", words, { scope: "col" }));
  table.append(element("thead"));
  table.tHead.append(head);
  const labels = [...new Set([...served.map((each) => each.label), ...described.available.flatMap((each) => each.labels)])];
  for (const each of described.available) {
    const row = table.insertRow();
    row.append(element("td", each.version), element("td", each.created ? `${age(each.created)} ago` : "-"));
    row.append(element("td", each.metrics?.logloss?.toFixed(5) ?? "-"), element("td", each.labels.join(", ")));
    const buttons = element("td");
    for (const label of labels.filter((name) => !each.labels.includes(name))) {
      buttons.append(changing(`Promote to ${label}`, label, { version: each.version }), " ");
    }
    row.append(buttons);
  }
  const back = element("div", undefined, { class: "line" });
  for (const label of labels) back.append(changing(`Roll back ${label}`, label, { rollback: true }));
  const scrolled = element("div", undefined, { class: "wide" });
  scrolled.append(table);
  replaceIn(at("registry"), scrolled, back);
}

function changing(words, label, body) {
  const button = element("button", words, { type: "button", class: "second", id: `${words} ${body.version ?? ""}` });
  button.addEventListener("click", async () => {
    for (const each of at("registry").querySelectorAll("button")) each.disabled = true;
    try {
      const isServed = served.some((each) => each.label === label);
      const after = isServed ? "The server tests it, then serves it." : "This server does not serve that label.";
      const changed = await (await ask(`v1/models/${encodeURIComponent(label)}`, { body, bearer: adminToken })).json();
      at("admin-said").textContent = `${changed.label} is ${changed.version} now. ${after}`;
    } catch (problem) {
      at("admin-said").textContent = problem.message;
    }
    await showRegistry().catch((problem) => (at("admin-said").textContent = problem.message));
    at("admin-said").focus(); // the button has gone
  });
  return button;
}

// ---- the model, and a row to try it with

async function showModel() {
  const version = shownVersion();
  if (shownId !== null && (version === undefined || version.version === shownId)) return;
  const response = await ask("page/model", { label: version?.label });
  const typed = new Map(shownId === null ? [] : [...at("example").querySelectorAll("input")].map((input) => [input.name, input.value]));
  at("model").innerHTML = await response.text();
  shownId = response.headers.get("ctr-model") ?? "";
  const form = at("example");
  const rows = JSON.parse(form.dataset.rows);
  let next = 0;
  const fill = (row) => {
    for (const input of form.querySelectorAll("input")) input.value = row[input.name] ?? "";
    at("result").replaceChildren();
  };
  const fillNext = () => {
    fill(rows[next]);
    next = (next + 1) % rows.length;
  };
  if (typed.size) fill(Object.fromEntries(typed));
  else fillNext();
  at("another").addEventListener("click", fillNext);
  at("another").hidden = rows.length < 2;
  form.addEventListener("reset", () => at("result").replaceChildren());
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      const answer = await ask("v1/explain", { body: { rows: [rowOf(form)] }, label: shownVersion()?.label });
      showResult((await answer.json()).explanations[0]);
    } catch (problem) {
      at("result").replaceChildren(element("p", problem.message, { class: "problem" }));
    }
    at("result").scrollIntoView({ block: "nearest" });
  });
}

function rowOf(form) {
  const row = {};
  for (const input of form.querySelectorAll("input")) {
    if (input.value !== "") row[input.name] = input.dataset.kind === "list" && input.value.startsWith("[") ? listOf(input) : input.value;
  }
  return row;
}

function listOf(input) {
  try {
    return JSON.parse(input.value);
  } catch {
    throw new Error(`${input.name}: not a list; write it as ["a", "b"]`);
  }
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
  const words = `What each feature adds to the log-odds, ${result.log_odds.toFixed(4)} in all: blue raises the probability, orange lowers it`;
  at("result").replaceChildren(
    element("p", `${(100 * result.prediction).toFixed(2)}%`, { class: "probability" }),
    element("p", `${words}${rest > 0 ? `. The largest ${parts.length} of ${result.contributions.length}` : ""}. Features without a weight: ${unseen}.`, { class: "soft" }),
    list,
  );
}

// ---- the whole

// As the server describes them; null where the application has one model.
async function versions() {
  try {
    return await ask("v1/models", { bearer: adminToken ?? token });
  } catch (problem) {
    if (problem.status === 404) return null;
    if (problem.status !== 401 || adminToken === null) throw problem;
    lockAdministration(); // the token is no longer valid
    return versions();
  }
}

function lockAdministration() {
  adminToken = null;
  at("registry").replaceChildren();
  at("admin").hidden = false;
  at("admin-said").textContent = "The server does not accept this token for administration.";
}

async function refresh() {
  try {
    const metrics = parsed(await (await ask("metrics")).text());
    const models = await versions();
    if (models !== null) showVersions(await models.json(), metrics);
    at("administration").hidden = models === null;
    at("content").hidden = false;
    at("login").hidden = true;
    showNow(metrics, Date.now());
    await showModel();
    const ready = await ask("readyz").then(() => null, (problem) => problem.message);
    at("state").textContent = ready ?? "ready";
    at("state").className = ready === null ? "chip good" : "chip bad";
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
  const given = at("admin-token").value.trim();
  try {
    await showRegistry(given);
    adminToken = given;
    at("admin-token").value = "";
    at("admin").hidden = true;
    at("admin-said").textContent = "";
  } catch (problem) {
    if (problem.status === 401) lockAdministration();
    else at("admin-said").textContent = problem.message;
  }
});
poll();
