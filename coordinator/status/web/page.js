"use strict";
// Reads /api/status at the start and after each round. Between rounds a stream sends the changes. Names and reasons come from other
// peers, so they are set as textContent only.

const bits = nats => nats / Math.LN2;
const POLL_MS = 3000, AGAIN_MS = 2000, PAGES_MS = 5000, PARTIAL_SHOWN = 3;

let full = null, now = null, events = [], lastEvent = -1, fetching = false;

function make(tag, text, cls) {
  const node = document.createElement(tag);
  if (text != null) node.textContent = text;
  if (cls) node.className = cls;
  return node;
}
const areStages = () => (now.units || []).some(u => u.unit.startsWith("stage-"));
const names = () => ({ ...(full && full.names), ...Object.fromEntries(now.peers.map(p => [p.peer, p.name])) });

// The host's words. Only links of these kinds become links; all else is text.
const LINK = /https?:\/\/[^\s<>"']*[^\s<>"'.,;:!?)]/g;
function linked(text, href) {
  const link = make("a", text);
  link.href = href;
  link.rel = "noopener noreferrer nofollow";
  return link;
}
function withLinks(text) {
  const parts = [];
  let from = 0;
  for (const found of text.matchAll(LINK)) {
    parts.push(text.slice(from, found.index), linked(found[0], found[0]));
    from = found.index + found[0].length;
  }
  return [...parts, text.slice(from)];
}
function said(id, label, parts) {
  el(id).hidden = !parts;
  el(id).replaceChildren(label, ...(parts || []));
}
function words() {
  const { description, contact, join } = now.page || {};
  said("description", "", description && [description]);
  const ask = join ? withLinks(join) : now.view === "host" ? ["make an invite with: potluck invite"] : null;
  said("join", "To join: ", now.phase === "finished" ? null : ask);
  said("contact", "Contact: ", contact && [linked(contact, /^https:/.test(contact) ? contact : `mailto:${contact}`)]);
}

function header() {
  words();
  el("run").textContent = now.run;
  document.title = `${now.run} - Potluck`;
  const phase = now.waiting ? "waiting" : now.phase;
  el("phase").textContent = phase;
  el("phase").className = `chip ${phase}`;
  el("reason").textContent = now.waiting || (phase === "training" ? "" : now.reason);
  const share = Math.min(1, now.total_tokens / now.target_total_tokens);
  el("done").style.width = `${100 * share}%`;
  el("done").parentElement.setAttribute("aria-valuenow", (100 * share).toFixed(0));
  const left = phase === "waiting" ? "" : phase === "finished" ? ", done" :
    now.eta_s == null ? ", time left: not known yet" : `, ${span(now.eta_s)} to go`;
  el("progress").textContent = `${big(now.total_tokens)} of ${big(now.target_total_tokens)} tokens${left}`;
  const notes = [];
  if (now.trouble) notes.push(`${now.trouble[0].toUpperCase()}${now.trouble.slice(1)}.`);
  if (now.push && now.push.reason) notes.push(`The newest checkpoint was not pushed: ${now.push.reason}.`);
  if (now.restarted) notes.push(`The host ${now.restarted}.`);
  for (const m of now.missing || []) notes.push(`Missing: round ${m.index} of ${m.name}, for ${span(m.missing_s)}: ${m.reason}.`);
  if (!areStages()) for (const u of (now.units || []).filter(u => u.frozen)) notes.push(`${u.unit} is frozen.`);
  if (now.apart) notes.push(`${now.apart[0].toUpperCase()}${now.apart.slice(1)}.`);
  if (now.forks) notes.push(`The run goes on in ${now.forks + 1} branches until they meet: some peers cannot reach the others.`);
  if (now.bans) notes.push(`${several(now.bans, "peer")} banned.`);
  el("notes").textContent = notes.join(" ");
  el("metrics").hidden = now.view !== "host";
}

// The mean of the last minute: a peer that comes, leaves or takes a breath must not make the number jump.
const STEADY_MS = 60000, seen = [];
function steady(speed) {
  const at = Date.now();
  seen.push([at, speed]);
  while (at - seen[0][0] > STEADY_MS) seen.shift();
  return seen.reduce((sum, [, each]) => sum + each, 0) / seen.length;
}

function cards() {
  const speed = steady(now.tokens_per_s), newest = full.heldout[full.heldout.length - 1];
  const round = full.rounds[full.rounds.length - 1];
  const facts = [["peers here", now.num_here], ["tokens per second", big(speed)], ["round", now.index],
    ["held-out bits per byte", newest ? bits(newest.nats).toFixed(3) : "not yet"],
    ["of the last round covered", round ? (100 * round.coverage).toFixed(0) + "%" : "not yet"],
    ["since the last round", round ? span(Date.now() / 1000 - round.unix_s) : "not yet"]];
  for (const s of now.sources || [])
    facts.push([`of the text read is ${s.name}`, s.share == null ? "none yet" : (100 * s.share).toFixed(0) + "%"]);
  const spent = now.energy || {};
  if (spent.num_peers) {
    facts.push([`kWh by ${several(spent.num_peers, "peer")} with a meter`, spent.kwh.toPrecision(3)]);
    if (spent.joules_per_token != null) facts.push(["joules a token", spent.joules_per_token.toPrecision(3)]);
    if (spent.carbon_kg != null)
      facts.push(["kg of CO2" + (spent.carbon_share < 1 ? `, for ${(100 * spent.carbon_share).toFixed(0)}% of it` : ""), spent.carbon_kg.toPrecision(3)]);
  }
  el("cards").replaceChildren(...facts.map(([name, value]) => {
    const card = make("div", null, "card");
    card.append(make("b", value), make("span", name));
    return card;
  }));
}

function curves() {
  const points = rows => rows.map(p => [p.tokens, bits(p.nats)]);
  draw("loss", [{ label: "training", colour: "--b", points: points(full.train_loss) },
    { label: "held-out", colour: "--a", points: points(full.heldout) },
    ...(full.prose.length ? [{ label: "prose", colour: "--good", points: points(full.prose) }] : [])],
    [{ label: "zlib", value: full.yardsticks.zlib_bits_per_byte, dash: [6, 4] },
      { label: "table of byte pairs", value: bits(full.yardsticks.pairs_nats_per_byte), dash: [2, 3] }], v => v.toFixed(3));
  const units = full.units || [], whole = { label: "whole model", colour: "--a", points: points(full.heldout) };
  el("of-experts").hidden = !units.length;
  el("expert-loss").hidden = areStages();
  if (areStages()) el("parts-heading").replaceChildren("Stages ", make("small", "of one model, each with its replicas and its rounds"));
  if (units.length && !areStages()) draw("expert-loss", [whole, ...units.map((u, i) => ({ label: u.unit, stroke: expertColour(i),
    points: points(full.heldout_experts[u.unit] || []) }))], [], v => v.toFixed(3));
  draw("speed", [{ label: "tokens per second", colour: "--a", points: full.speeds }], [], big);
}

const percent = share => share == null ? "" : `${(100 * share).toFixed(1)}%`;

// Prompts and answers are text of others.
function tasks() {
  const all = full.tasks || [], asked = all.filter(t => t.kind !== "prompts"), said = all.filter(t => t.kind === "prompts");
  el("of-tasks").hidden = !all.length;
  if (!all.length) return;
  el("tasks").hidden = !asked.length;
  if (asked.length) draw("tasks", asked.map((t, i) => ({ label: t.name, stroke: expertColour(i),
    points: t.points.filter(p => p.acc_norm != null).map(p => [p.tokens, p.acc_norm]) })),
    asked.map(t => ({ label: `${t.name} by chance`, value: t.chance, dash: [2, 3] })), percent);
  table("scores", [["task"], ["questions", "n"], ["likeliest", "n"], ["for each byte", "n"], ["by chance", "n"], ["round", "n"], ["missing", "w"]],
    asked.map(t => {
      const whole = t.points.filter(p => p.acc != null), newest = whole[whole.length - 1], last = t.points[t.points.length - 1];
      const missing = last && last.missing.length ? `round ${last.index}: part ${last.missing.join(", ")} of ${t.parts}` : "";
      return [t.name, String(t.num_items), newest ? percent(newest.acc) : "not yet", newest ? percent(newest.acc_norm) : "",
        percent(t.chance), newest ? String(newest.index) : "", missing];
    }));
  el("answers").replaceChildren(...said.map(t => {
    const box = make("details"), list = make("dl");
    box.open = true;
    box.append(make("summary", `${t.name}: ${t.answers.length ? `the model's own words at round ${t.answered_index}` : "no answer yet"}`), list);
    for (const each of t.answers) list.append(make("dt", each.prompt), make("dd", each.answer));
    return box;
  }));
}

function readRound(round) {
  if (!round.members.length) {
    el("round").textContent = `Round ${round.index}: the host took the run back to round ${round.index - 1}; nobody is counted.`;
    return;
  }
  const by = names(), named = peer => by[peer] || peer.slice(-6);
  const shares = Object.entries(round.weights).map(([peer, share]) => `${named(peer)} ${(100 * share).toFixed(0)}%`);
  const out = round.omitted.filter(o => o.reason !== NO_PART).map(o => `${named(o.peer)} left out: ${o.reason}`);
  out.push(...round.disagreed.map(d => `${named(d.peer)}: ${d.reason}`));
  el("round").textContent = `Round ${round.index}${round.lone ? ", committed alone" : ""}: ${shares.join(", ")}; ` +
    `${(100 * round.coverage).toFixed(0)}% covered${out.length ? "; " + out.join("; ") : ""}; commit ${round.commit.slice(0, 8)}, ` +
    `${span(Date.now() / 1000 - round.unix_s)} ago.`;
}

function table(id, heads, rows) {
  const body = el(id);
  body.replaceChildren();
  const head = body.insertRow();
  for (const [text, cls] of heads) head.append(make("th", text, cls));
  for (const row of rows) {
    const tr = body.insertRow();
    row.forEach((value, i) => { const td = tr.insertCell(); td.className = heads[i][1] || ""; td.append(value == null ? "" : value); });
  }
}

const ORDERS = { name: (a, b) => a.name.localeCompare(b.name), counted: (a, b) => b.tokens_counted - a.tokens_counted,
  speed: (a, b) => b.tokens_per_s - a.tokens_per_s };
// All rows come with the status while they are few. Pages of more are asked for one by one, and not more often than PAGES_MS.
let page = 0, asked = null, askedAt = 0, typing = 0;
const isPaged = () => now.num_peers > now.peers.length || now.num_away > (full.away || []).length;
const searched = () => el("search").value.trim();
function otherPeers() { page = 0; askedAt = 0; if (full) peers(); }
el("order").onchange = otherPeers;
el("search").oninput = () => { clearTimeout(typing); typing = setTimeout(otherPeers, 300); };
el("back").onclick = () => { page -= 1; askedAt = 0; peers(); };
el("next").onclick = () => { page += 1; askedAt = 0; peers(); };

async function askPeers() {
  if (document.hidden || Date.now() - askedAt < PAGES_MS) return;
  askedAt = Date.now();
  const query = asked = `page=${page}&order=${el("order").value}&search=${encodeURIComponent(searched())}`;
  try {
    const answer = await fetch(`api/peers?${query}`);
    if (asked !== query) return; // another one was asked for meanwhile
    if (answer.status === 400 && page) { page = 0; askedAt = 0; return; } // peers went, and the page with them
    if (answer.ok) { const found = await answer.json(); peerRows(found.peers); pages("back", "next", "peer-page", found, found.num_found, "peer"); }
  } catch (error) { /* the stream tells that the host is away */ }
}

// The buttons and the number of a page; hidden while everything is on one.
function pages(first, last, label, at, count, thing) {
  el(label).parentElement.hidden = at.num_pages < 2;
  el(label).textContent = `page ${at.page + 1} of ${at.num_pages}, ${several(count, thing)}`;
  el(first).disabled = at.page === 0;
  el(last).disabled = at.page >= at.num_pages - 1;
}

const isFound = p => [p.name, p.nickname || "", p.team || "", p.peer].some(text => text.toLowerCase().includes(searched().toLowerCase()));

const reach = p => p.outbound_only == null ? "" : p.outbound_only ? "others cannot connect" : "open";

function peers() {
  leaders();
  teams();
  if (isPaged()) { askPeers(); return; }
  // Contributors that are away come with the whole status, once a round. One that has come back since is among those that are here.
  const here = new Set(now.peers.map(p => p.peer)), away = (full.away || []).filter(p => !here.has(p.peer));
  el("peer-page").parentElement.hidden = true;
  peerRows(now.peers.concat(away).filter(isFound).sort(ORDERS[el("order").value]));
}

function peerRows(rows) {
  const hasTeams = rows.some(p => p.team);
  const heads = [["peer"], ...(hasTeams ? [["team", "x"]] : []), ["state"], ["tokens/s", "n"], ["counted", "n"], ["rounds", "n x"], ["loss", "n x"], ["reach", "x"],
    ["version", "x"], ["sent", "n x"], ["received", "n x"], ["here for", "n x"], ["seen", "n x"], ["state root", "x"]];
  table("peers", heads, rows.map(p => {
    const who = make("span"), dot = make("i", null, "dot");
    dot.style.background = `hsl(${hueOf(p.peer)} 60% 52%)`;
    who.append(dot, p.name);
    if (p.nickname) who.append(" (", make("bdi", p.nickname), ")");
    who.title = p.peer;
    const state = p.is_banned ? make("span", "banned", "bad") : make("span", p.state);
    state.title = p.reason;
    if (p.standing && p.standing !== "keeper") {
      const passed = p.audits_passed ? `, passed ${p.audits_passed} times when done again` : "";
      const failed = p.audits_failed ? `, failed ${p.audits_failed} times` : "";
      const untold = p.audits_untold ? `, told auditors nothing ${p.audits_untold} times` : "";
      const part = make("span", `, ${p.standing}${passed}${failed}${untold}`);
      part.title = p.standing_reason;
      state.append(part);
    }
    if (p.left_out >= 0.01) {
      const part = make("span", `, ${(100 * p.left_out).toFixed(0)}% left out`, "bad");
      part.title = "share of its newest work that disagreed with most others' and neither moved the model nor counts";
      state.append(part);
    }
    return [who, ...(hasTeams ? [make("bdi", p.team || "")] : []), state, big(p.tokens_per_s), big(p.tokens_counted), String(p.rounds_counted),
      p.loss == null ? "" : bits(p.loss).toFixed(3), reach(p), p.version, p.bytes_up == null ? "" : inBytes(p.bytes_up),
      p.bytes_down == null ? "" : inBytes(p.bytes_down), p.here_s == null ? "" : span(p.here_s), p.last_seen_s == null ? "" : span(p.last_seen_s),
      p.state_root.slice(0, 8)];
  }));
}

// Of an open run. Nicknames and teams are words of strangers: written as text, and apart from the peer's own name.
function leaders() {
  const rows = full.leaders || [];
  el("leaders").parentElement.parentElement.hidden = !rows.length;
  table("leaders", [["peer"], ["team", "x"], ["standing"], ["counted", "n"], ["kept", "n"], ["days", "n"]], rows.map(l => {
    const who = make("span", l.name);
    if (l.nickname) who.append(" (", make("bdi", l.nickname), ")");
    return [who, make("bdi", l.team), l.standing, big(l.tokens), `${l.kept_percent.toFixed(0)}%`, String(l.num_days)];
  }));
}

function teams() {
  const rows = now.teams || [];
  el("teams").parentElement.parentElement.hidden = !rows.length;
  table("teams", [["team"], ["peers", "n"], ["counted", "n"]],
    rows.map(t => [make("bdi", t.team), String(t.num_peers), big(t.tokens_counted)]));
}

// Rounds: the newest page comes with the status, and earlier ones when they are asked for.
let roundPage = 0;
async function rounds() {
  if (!roundPage) {
    timeline(full.rounds, names(), readRound);
    const num_pages = full.rounds.length ? Math.ceil(full.num_rounds / full.rounds.length) : 1;
    pages("newer", "older", "round-page", { page: 0, num_pages }, full.num_rounds, "round");
    return;
  }
  const answer = await fetch(`api/rounds?page=${roundPage}`).catch(() => null);
  if (!answer || !answer.ok) { roundPage = 0; rounds(); return; }
  const at = await answer.json();
  if (at.page !== roundPage) return;
  timeline(at.rounds, { ...names(), ...at.names }, readRound);
  pages("newer", "older", "round-page", at, full.num_rounds, "round");
}
el("older").onclick = () => { roundPage += 1; rounds(); };
el("newer").onclick = () => { roundPage -= 1; rounds(); };

// Neighbouring numbers get distant hues, for any number of experts.
const expertColour = number => `hsl(${(200 + 137 * number) % 360} 60% 52%)`;

// Columns of a stage: serving and spare replicas, throughput, capacity, and whether it is the bottleneck.
function speedOf(unit) {
  const s = (now.stages || []).find(s => s.unit === unit);
  if (!s) return ["", "", "", "", ""];
  return [String(s.serving), String(s.spare), big(s.tokens_per_s), s.could_tokens_per_s ? big(s.could_tokens_per_s) : "not yet",
    s.bottleneck ? make("span", "the bottleneck", "bad") : ""];
}

function experts() {
  const units = now.units || [], by = names();
  const heads = [[areStages() ? "stage" : "expert"], [areStages() ? "replicas" : "holders", "w"], ["rounds", "n x"], ["kept here", "n x"], ["up", "n x"], ["down", "n x"],
    ...(areStages() ? [["serve", "n x"], ["spare", "n x"], ["tokens/s", "n"], ["could do", "n"], ["", "w"]] : [["bits per byte", "n"]])];
  const moved = now.unit_bytes || {}, bytesOf = (unit, way) => unit in moved ? inBytes(moved[unit][way]) : "";
  const shared = "trunk" in moved ? [["trunk", "everybody", String(now.index), "", bytesOf("trunk", "bytes_up"), bytesOf("trunk", "bytes_down"), ""]] : [];
  table("experts", heads, shared.concat(units.map((u, i) => {
    const name = make("span"), dot = make("i", null, "dot"), curve = full.heldout_experts[u.unit] || [];
    dot.style.background = expertColour(i);
    name.append(dot, u.unit);
    const more = u.num_holders - u.holders.length, held = u.holders.map(p => by[p] || p.slice(-6)).join(", ") + (more > 0 ? `, ${more} more` : "");
    const last = areStages() ? speedOf(u.unit) : [curve.length ? bits(curve[curve.length - 1].nats).toFixed(3) : ""];
    return [name, held || (u.frozen ? make("span", `frozen: ${u.why}`, "bad") : "nobody yet"), String(u.index), String(u.kept_index),
      bytesOf(u.unit, "bytes_up"), bytesOf(u.unit, "bytes_down"), ...last];
  })));
}

function lanes() {
  const by = names(), rows = now.lanes || [];
  el("lanes").hidden = !rows.length;
  table("lanes", [["lane"], ["a replica of each stage", "w"], ["tokens/s", "n"]], rows.map(l => [String(l.lane),
    l.members.map(stage => stage.map(p => by[p] || p.slice(-6)).join(" + ") || "nobody").join(", "), big(l.tokens_per_s)])
    .concat(now.num_lanes > rows.length ? [[`${now.num_lanes - rows.length} more`, "", ""]] : []));
  partialLanes();
}

// Recent lane rounds that a stage lacks.
function partialLanes() {
  const all = now.partial_lanes || [], older = all.length - PARTIAL_SHOWN;
  el("partial-lanes").hidden = !all.length;
  el("partial-lanes").replaceChildren(...all.slice(-PARTIAL_SHOWN).reverse().map(p => make("li", `lane ${p.lane}: round ${p.round} is not at ` +
    `${p.lacking.join(", ")}: no commit there counts it, and the other stages count one more round of this lane`, "bad")),
    ...(older > 0 ? [make("li", `${older} earlier ones`)] : []));
}

function happened() {
  el("events").replaceChildren(...events.slice().reverse().map(e => {
    const item = make("li"), at = new Date(e.unix_s * 1000), clock = at.toLocaleTimeString([], { hour12: false });
    const isToday = at.toDateString() === new Date().toDateString();
    const when = make("time", isToday ? clock : `${at.toLocaleDateString([], { day: "numeric", month: "short" })} ${clock}`);
    when.dateTime = at.toISOString();
    when.title = at.toLocaleString();
    item.append(when, make("span", e.text, e.kind));
    return item;
  }));
}

function checkpoint(c) {
  const box = make("details"), files = make("p", "asking..."), head = make("summary",
    `round ${c.index}, ${big(c.total_tokens)} tokens, ${span(Date.now() / 1000 - c.unix_s)} ago`);
  box.append(head, make("p", `state root ${c.root.slice(0, 16)}`, "soft"));
  if (c.path) box.append(make("p", c.path, "soft"));
  if (now.view === "host") box.append(files);
  box.ontoggle = async () => {
    if (!box.open || now.view !== "host") return;
    const answer = await fetch(`api/checkpoints/${encodeURIComponent(c.name)}/files`).catch(() => null);
    if (!answer || !answer.ok) { files.textContent = answer ? "its files are gone" : "the host did not answer"; return; }
    const found = await answer.json();
    files.replaceChildren(...found.flatMap((f, i) => {
      const link = make("a", f.name);
      link.href = `checkpoints/${encodeURIComponent(c.name)}/${encodeURIComponent(f.name)}`;
      return [i ? ", " : "", link, ` (${inBytes(f.num_bytes)})`];
    }));
  };
  if (now.view === "host") {
    const button = make("button", "verify"), verdict = make("span");
    button.onclick = async () => {
      button.disabled = true;
      const began = Date.now(), say = () => { verdict.textContent = ` computing all hashes again, ${span((Date.now() - began) / 1000)} so far`; };
      const telling = setInterval(say, 1000);
      say();
      try {
        const answer = await (await fetch(`api/checkpoints/${encodeURIComponent(c.name)}/verify`)).json();
        verdict.textContent = " " + answer.sentence;
        verdict.className = answer.ok ? "good" : "bad";
      } catch (error) { verdict.textContent = " the host did not answer"; }
      clearInterval(telling);
      button.disabled = false;
    };
    const row = make("p");
    row.append(button, verdict);
    box.append(row);
  }
  return box;
}

async function downloads() {
  const answer = await fetch("api/model").catch(() => null);
  if (!answer || !answer.ok) return;
  const model = await answer.json(), box = el("downloads");
  box.hidden = !model.files.length;
  box.replaceChildren("Download the newest model: ", ...model.files.flatMap((f, i) => {
    const link = make("a", f.name);
    link.href = `model/${encodeURIComponent(model.name)}/${encodeURIComponent(f.name)}`;
    return [i ? ", " : "", link, ` (${inBytes(f.num_bytes)})`];
  }));
}

function checkpoints() {
  const box = el("checkpoints");
  // Keep the list, and an open entry that may be under verification, until there is another checkpoint.
  if (box.childElementCount && Number(box.dataset.count) === full.checkpoints.length) return;
  box.dataset.count = full.checkpoints.length;
  if (now.gives_model) downloads();
  if (full.checkpoints.length) box.replaceChildren(...full.checkpoints.slice().reverse().map(checkpoint));
  else box.textContent = "No checkpoint yet.";
}

async function readAll() {
  if (fetching) return;
  fetching = true;
  try {
    full = await (await fetch("api/status")).json();
    now = { ...now, ...full };
    curves();
    tasks();
    rounds();
    checkpoints();
  } finally { setTimeout(() => { fetching = false; }, AGAIN_MS); }
}

async function show(status) {
  now = status;
  el("lost").hidden = true;
  if (!full || full.index !== now.index || full.head !== now.head || full.num_points !== now.num_points || full.num_scores !== now.num_scores
      || full.num_checkpoints !== now.num_checkpoints) await readAll();
  header();
  if (full) { cards(); peers(); experts(); lanes(); }
  if (now.last_event !== lastEvent) {
    events = await (await fetch("api/events")).json();
    lastEvent = now.last_event;
    happened();
  }
}

let polling = null;
async function poll() {
  try { await show(await (await fetch("api/status")).json()); } catch (error) { el("lost").hidden = false; }
}
function listen() {
  const stream = new EventSource("api/stream");
  stream.addEventListener("now", async event => {
    clearInterval(polling);
    polling = null;
    try { await show(JSON.parse(event.data)); } catch (error) { el("lost").hidden = false; }
  });
  stream.onerror = () => {
    if (polling === null) { polling = setInterval(poll, POLL_MS); poll(); }
    // The host refused the stream, since too many are open: keep polling, and try again later.
    if (stream.readyState === EventSource.CLOSED) setTimeout(listen, 30000);
  };
}
const redraw = () => { if (full) { curves(); tasks(); rounds(); } };
let resized = 0;
addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(redraw, 150); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
listen();
