"use strict";
// The curves and the round timeline. Text from other peers is set as text, never as markup.

// A canvas does not support light-dark(), so an element resolves the colour.
function colour(name) {
  const probe = document.createElement("i");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}
const hue = text => { let h = 0; for (const c of text) h = (h * 31 + c.charCodeAt(0)) % 360; return h; };
// A peer's hue follows from its id. While they are few, one that is too near to another's on this page moves on.
const NEAR_HUE = 25, FEW_HUES = Math.floor(360 / NEAR_HUE), hues = new Map();
function hueOf(peer) {
  if (hues.has(peer)) return hues.get(peer);
  let found = hue(peer);
  const apart = other => Math.min(Math.abs(found - other), 360 - Math.abs(found - other));
  for (let i = 0; i < FEW_HUES && hues.size < FEW_HUES && [...hues.values()].some(other => apart(other) < NEAR_HUE); i += 1) found = (found + 47) % 360;
  hues.set(peer, found);
  return found;
}
const shade = (peer, share) => `hsl(${hueOf(peer)} 60% 52% / ${0.25 + 0.75 * Math.min(1, share)})`;

const charts = {};

// What a record says of a member that had nothing to bring, such as a paused one.
const NO_PART = "a spare, with no part in this round";

function draw(id, series, lines, format) {
  const box = document.getElementById(id);
  if (charts[id]) charts[id].destroy();
  const places = [...new Set(series.flatMap(s => s.points.map(p => p[0])))].sort((a, b) => a - b);
  if (!places.length) { box.textContent = "Nothing yet."; charts[id] = null; return; }
  box.textContent = "";
  const columns = series.map(s => { const at = new Map(s.points); return places.map(x => at.has(x) ? at.get(x) : null); });
  const flat = lines.map(line => places.map(() => line.value));
  const tick = n => n == null ? "" : big(n).replace(/\.0+(?= )/, "");
  // As wide as its longest label.
  const fitting = (u, labels) => 18 + 7 * Math.max(3, ...(labels || []).map(label => String(label).length));
  const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 } };
  // Where a curve has no point, its newest one before.
  const known = (u, v, i, at) => v ?? u.data[i].slice(0, (at ?? -1) + 1).findLast(each => each != null);
  const curve = s => ({ label: s.label, stroke: s.stroke || colour(s.colour), width: 2, spanGaps: true, points: { show: places.length < 3 },
    value: (...at) => known(...at) == null ? "" : format(known(...at)) });
  const rule = line => ({ label: line.label, stroke: colour("--soft"), width: 1, dash: line.dash, points: { show: false },
    value: (u, v) => v == null ? "" : format(v) });
  charts[id] = new uPlot({
    width: box.clientWidth, height: 200, hooks: { ready: [u => u.setLegend({ idx: places.length - 1 })] }, scales: { x: { time: false }, y: { range: (u, low, high) => [0, (high || 1) * 1.06] } },
    // Dash the legend as the line is drawn: two lines of one colour differ only in that.
    legend: { markers: { dash: (u, i) => !u.series[i].dash ? "solid" : u.series[i].dash[0] > 3 ? "dashed" : "dotted" } },
    axes: [{ ...axis, values: (u, ticks) => ticks.map(tick), size: 34 }, { ...axis, size: fitting, values: (u, ticks) => ticks.map(tick) }],
    series: [{ label: "tokens", value: (u, v) => v == null ? "" : big(v) }, ...series.map(curve), ...lines.map(rule)],
  }, [places, ...columns, ...flat], box);
}

const NUM_ROUNDS = 60;

// One row per peer, one column per round. Darker means a larger share of the round's weight.
function timeline(rounds, names, choose) {
  const box = document.getElementById("timeline"), shown = rounds.slice(-NUM_ROUNDS);
  const peers = [...new Set(shown.flatMap(r => [...Object.keys(r.weights), ...r.omitted.map(o => o.peer)]))]
    .sort((a, b) => (names[a] || a).localeCompare(names[b] || b));
  box.replaceChildren();
  if (!shown.length) { box.textContent = "No round was committed yet."; return; }
  box.style.gridTemplateColumns = `max-content repeat(${shown.length}, minmax(9px, 1fr))`;
  const put = (node, cls) => { node.className = cls; box.append(node); return node; };
  for (const peer of peers) {
    put(document.createElement("span"), "name").textContent = names[peer] || peer.slice(-6);
    for (const round of shown) {
      const left = round.omitted.filter(o => o.peer === peer && o.reason !== NO_PART), share = round.weights[peer];
      const cell = put(document.createElement("button"), left.length ? "cell out" : "cell");
      if (share != null) cell.style.backgroundColor = shade(peer, share * 2);
      cell.title = `round ${round.index}, ${names[peer] || peer}: ` + (share != null ? `${(100 * share).toFixed(0)}%` : "not counted")
        + left.map(o => `; left out: ${o.reason}`).join("");
      cell.setAttribute("aria-label", cell.title);
      cell.tabIndex = peer === peers[0] ? 0 : -1;
      cell.onmouseenter = cell.onfocus = cell.onclick = () => choose(round);
    }
  }
  put(document.createElement("span"), "name soft").textContent = "round";
  const every = Math.max(1, Math.ceil(shown.length / 12));
  shown.forEach((round, i) => {
    put(document.createElement("span"), round.lone ? "mark lone" : "mark").textContent =
      round.lone ? "!" : i % every === 0 ? round.index : "";
  });
  if (!box.contains(document.activeElement)) box.parentElement.scrollLeft = box.parentElement.scrollWidth;
}
