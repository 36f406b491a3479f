"use strict";
// Asks this machine's own peer every second. Reasons may come from strangers: textContent only.

const NS = "http://www.w3.org/2000/svg", ASK_MS = 1000, MOST_POINTS = 600;
const speeds = [];

function facts(id, pairs) {
  el(id).replaceChildren(...pairs.filter(pair => pair[1] != null && pair[1] !== "").flatMap(([name, value]) => {
    const term = document.createElement("dt"), detail = document.createElement("dd");
    term.textContent = name;
    detail.textContent = value;
    return [term, detail];
  }));
}

function cards(pairs) {
  el("cards").replaceChildren(...pairs.map(([name, value]) => {
    const card = document.createElement("div"), number = document.createElement("b"), label = document.createElement("span");
    card.className = "card";
    number.textContent = value;
    label.textContent = name;
    card.append(number, label);
    return card;
  }));
}

function line() {
  const svg = el("speed"), most = Math.max(...speeds, 1), path = document.createElementNS(NS, "path"),
    floor = document.createElementNS(NS, "line");
  svg.setAttribute("viewBox", "0 0 600 100");
  svg.setAttribute("preserveAspectRatio", "none");
  for (const [key, value] of Object.entries({ x1: 0, x2: 600, y1: 99, y2: 99 })) floor.setAttribute(key, value);
  const step = 600 / Math.max(1, speeds.length - 1);
  path.setAttribute("d", speeds.map((speed, i) => `${i ? "L" : "M"}${i * step} ${98 - 92 * speed / most}`).join(""));
  svg.replaceChildren(floor, path);
}

function nextRound(s) {
  const ready = s.round_tokens_ready, left = s.round_longest_s - s.round_waited_s,
    share = ready ? Math.min(1, Math.max(ready / s.round_target_tokens, s.round_longest_s ? s.round_waited_s / s.round_longest_s : 0)) : 0;
  el("next").hidden = !s.round_target_tokens || s.download_bytes_all > 0;
  el("ready").style.width = `${100 * share}%`;
  el("ready").parentElement.setAttribute("aria-valuenow", (100 * share).toFixed(0));
  el("ready-text").textContent = `next round: ${big(ready)} of ${big(s.round_target_tokens)} tokens ready`
    + (share >= 1 ? ", due" : ready && left > 0 ? `, at the latest in ${span(left)}` : "");
}

function shares(tokens) {
  const all = tokens.reduce((sum, each) => sum + each, 0);
  return all ? tokens.map((each, i) => `source ${i + 1}: ${(100 * each / all).toFixed(0)}%`).join(", ") : "";
}

function show(s) {
  const chosen = document.createElement("bdi");
  chosen.textContent = s.nickname;
  el("name").replaceChildren(s.name, ...(s.nickname ? [" (", chosen, ")"] : []));
  document.title = `${s.name}: ${s.state} - Potluck`;
  el("state").textContent = s.state === "training" || s.state === "paused" || s.state_s < 5 ? s.state : `${s.state} for ${span(s.state_s)}`;
  el("state").className = `chip ${s.state}`;
  el("reason").textContent = s.state === "training" ? "" : s.reason;
  const isTold = s.round_target_tokens > 0 && s.round_waiting.startsWith("training: round ");  // beside the bar
  el("waiting").textContent = [s.trouble, s.offline, s.offline || s.trouble.includes(" is full: ") ? "" : s.apart, s.allowed_reason, s.worker_state && s.worker_state !== "training" ? s.worker_reason : "", s.offline || s.trouble || isTold ? "" : s.round_waiting]
    .filter((text, i, all) => text && !s.reason.includes(text) && all.indexOf(text) === i).join("; ");
  el("download").hidden = !s.download_bytes_all;
  if (s.download_bytes_all) {
    el("bytes").style.width = `${100 * s.download_bytes_here / s.download_bytes_all}%`;
    el("bytes-text").textContent = `${s.download_what}: ${inBytes(s.download_bytes_here)} of ${inBytes(s.download_bytes_all)} from ${several(s.download_donors, "peer")}, ${s.download_left_s == null ? "time left: not known yet" : span(s.download_left_s) + " to go"}`;
  }
  nextRound(s);
  speeds.push(s.tokens_per_s);
  if (speeds.length > MOST_POINTS) speeds.shift();
  line();
  cards([["tokens per second", big(s.tokens_per_s)], ["rounds that counted your work", String(s.rounds_counted)],
    ["tokens trained here", big(s.tokens_trained)], ["loss, bits per byte", s.loss == null ? "not yet" : (s.loss / Math.LN2).toFixed(3)],
    ["sent", inBytes(s.bytes_up)], ["received", inBytes(s.bytes_down)]]);
  const done = s.target_total_tokens ? ` (${(100 * s.total_tokens / s.target_total_tokens).toFixed(1)}%)` : "";
  facts("run", [["run", s.run], ["round", String(s.index)], ["trained by all", `${big(s.total_tokens)} tokens${done}`],
    ["time left", s.eta_s == null ? "" : span(s.eta_s)],
    ["not yet counted", `${big(s.tokens_ready)} tokens`],
    ["in the last round", s.last_round ? `${several(s.last_round.members.length, "peer")}, your share `
      + `${(100 * (s.last_round.weights[s.peer] || 0)).toFixed(0)}%` : ""],
    ["host", s.host_heard_ago_s == null ? "" : `heard ${span(s.host_heard_ago_s)} ago`],
    ["credential", s.credential_left_s == null ? "" : `good for ${span(s.credential_left_s)}`],
    ["connections", s.is_outbound_only ? "only those made from here" : "from and to here"], ["restarted", s.restarted]]);
  facts("machine", [["up for", span(Date.now() / 1000 - s.started_unix_s)], ["memory", inBytes(s.memory_bytes)],
    ["card", s.gpu_busy == null ? "" : `${(100 * s.gpu_busy).toFixed(0)}% busy`],
    ["how it trains", s.card_plan], ["not compiled", s.compile_note],
    ["steps skipped", s.skipped_steps ? `${big(s.skipped_steps)}, whose gradient was not finite` : ""],
    ["text read, by source", shares(s.source_tokens)],
    ["how its cards train together", s.layout],
    ...s.cards.map((c) => [`card ${c.number}`, cardLine(c)]),
    ["card's peak that training uses", s.mfu == null ? "" : `${(100 * s.mfu).toFixed(0)}%`],
    ["memory that training took", s.card_used_bytes == null ? "" : `${inBytes(s.card_used_bytes)} of ${inBytes(s.card_expected_bytes)} expected`],
    ["card's memory", inBytes(s.gpu_memory_bytes)],
    ["card's temperature", s.gpu_celsius == null ? "" : `${s.gpu_celsius} °C`],
    ["card's power", s.gpu_watts == null ? "" : `${s.gpu_watts.toFixed(0)} W`],
    ["energy since the start", energy(s)],
    ["processor's temperature", s.cpu_celsius == null ? "" : `${s.cpu_celsius.toFixed(0)} °C`],
    ["disk", `${inBytes(s.disk_bytes)}` + (s.disk_files_bound_bytes ? `, at most ${inBytes(s.disk_files_bound_bytes)} and a log of the rounds` : "")],
    ["training process", s.worker_restarts ? `brought back ${several(s.worker_restarts, "time")}` : s.worker_state],
    ["team", s.team], ["version", s.version], ["peer id", s.peer]]);
}

function energy(s) {
  if (s.energy_joules == null) return s.energy_note ? `not known: ${s.energy_note}` : "";
  const kwh = s.energy_joules / 3.6e6;
  return [`${kwh.toPrecision(3)} kWh`, s.tokens_trained ? `${(s.energy_joules / s.tokens_trained).toPrecision(3)} J a token` : "",
    s.grid_g_per_kwh == null ? "" : `${(kwh * s.grid_g_per_kwh / 1000).toPrecision(3)} kg of CO2`].filter((text) => text).join(", ");
}

function cardLine(c) {
  if (c.left_out) return `${c.name}: left out, ${c.left_out}`;
  const used = c.used_bytes == null ? "memory not measured" : inBytes(c.used_bytes);
  return [`${c.name}: ${big(c.tokens_per_s)} tokens/s`, `${(100 * c.share).toFixed(0)}% of the tokens`,
    used + (c.expected_bytes ? ` of ${inBytes(c.expected_bytes)} expected` : ""),
    c.celsius == null ? "" : `${c.celsius} °C`, c.mfu == null ? "" : `${(100 * c.mfu).toFixed(0)}% of its peak`].filter((text) => text).join(", ");
}

async function look() {
  try {
    show(await (await fetch("status.json")).json());
    el("lost").hidden = true;
  } catch (error) { el("lost").hidden = false; }
  setTimeout(look, ASK_MS);
}
look();
