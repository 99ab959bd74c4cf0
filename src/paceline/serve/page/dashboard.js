// -- figures of the server ---------------------------------------------------------------------------------------

async function poll() {
  clearTimeout(poll.timer);
  if (document.hidden) return;
  try {
    const response = await reach("stats", {headers: headers(), signal: AbortSignal.timeout(5000)});
    if (!response.ok) throw await refusal(response);
    await take(await response.json());
    outage = "";
  } catch (error) { outage = error.name === "TimeoutError" ? "The server does not answer." : error.message; }
  $("state").className = outage ? "down" : "up";
  $("state").textContent = outage ||
    [stats.model, stats.draft && `drafts by ${stats.draft}`].filter(Boolean).join(" · ");
  paint();
  poll.timer = setTimeout(poll, 1000);
}
document.addEventListener("visibilitychange", () => poll());

const HOUR = 3600;
/** What a drafter or verifier does, in the server's words. */
const about = (name) => stats?.about?.[name] ?? "";

/** Remember a reading; forget those of an earlier start. */
async function take(reading) {
  const again = stats && reading.uptime_s < stats.uptime_s, first = !stats;
  if (again) readings = [];
  stats = reading;
  if (first || $("drafter").length - 1 !== reading.drafters.length) choices();
  readings.push(reading);
  while (readings[0].uptime_s < reading.uptime_s - HOUR) readings.shift();
  if (!first && !again) return;
  const response = await reach("stats/history", {headers: headers()}).catch(() => null);
  if (!response?.ok) return;
  readings.unshift(...(await response.json()).readings.filter((old) => old.uptime_s < readings[0].uptime_s));
}

/** Names to choose from, with what they do. */
function choices() {
  const told = (name) => about(name) ? `${name}: ${about(name)}` : name;
  for (const [id, names] of [["drafter", stats.drafters], ["verifier", stats.verifiers], ["model", stats.models]]) {
    const before = $(id).value;
    while ($(id).length > (id === "model" ? 0 : 1)) $(id).lastChild.remove();
    $(id).append(...names.map((name) => el("option", {value: name}, told(name))));
    if (names.includes(before)) $(id).value = before;
  }
  $("which").hidden = stats.models.length < 2;
  $("two").hidden = !stats.small;
}

/** What was counted in the chosen span: the counters now, less those at its start. */
function counted() {
  const span = Number($("span").value);
  const from = span ? readings.find((old) => old.uptime_s >= stats.uptime_s - span) : null;
  const less = (now = [], old = []) => now.map((value, depth) => value - (old[depth] ?? 0));
  const drafters = Object.entries(stats.by_drafter).map(([name, now]) => {
    const old = from?.by_drafter[name];
    return {name, offered: less(now.offered, old?.offered), kept: less(now.kept, old?.kept),
      passes: now.passes - (old?.passes ?? 0), generated: now.generated - (old?.generated ?? 0)};
  });
  return {offered: less(stats.offered, from?.offered), kept: less(stats.kept, from?.kept), drafters};
}

/** Differences of neighbouring readings: [uptime, (change of a) / (change of b)], null where b stood still. */
function slope(a, b) {
  return readings.slice(1).map((now, i) => {
    const run = b(now) - b(readings[i]);
    return [now.uptime_s, run > 0 ? (a(now) - a(readings[i])) / run : null];
  });
}

function paint() {
  if (!stats || $("dashboard").hidden) return;
  const speed = slope((s) => s.tokens.generated, (s) => s.uptime_s);
  const tau = slope((s) => s.tokens.generated, (s) => s.passes);
  const level = (of) => readings.map((s) => [s.uptime_s, of(s)]);
  const used = (s) => 100 * s.kv.used / s.kv.blocks, cached = (s) => 100 * s.kv.cached / s.kv.blocks;
  tiles(speed.at(-1)?.[1] ?? 0);
  chart("c-rate", [["", speed]], rate);
  chart("c-load", [["running", level((s) => s.running)], ["waiting", level((s) => s.waiting)]], count);
  chart("c-tau", [["", tau]], (n) => n.toFixed(2));
  chart("c-kv", [["used", level(used)], ["cached", level(cached)]], (n) => `${n.toFixed(n < 10 ? 1 : 0)} %`);
  depths();
  fleet();
}

function tiles(speed) {
  const {kv, tokens} = stats, minutes = Math.floor(stats.uptime_s / 60);
  const rows = [
    ["Running", count(stats.running), `of ${count(stats.max_requests)} at once`],
    ["Waiting", count(stats.waiting), `of ${count(stats.queue_limit)} at most`],
    ["Tokens per second", rate(speed), `${count(tokens.generated)} so far`],
    ["Tau", stats.tau.toFixed(2), "tokens per pass, overall"],
    ["Speculation saved", `${stats.saved_s.toFixed(1)} s`, `of the ${(stats.saved_s + stats.busy_s).toFixed(1)} s of plain decoding`],
    ["K/V in use", share(kv.used, kv.blocks), `${count(kv.used)} of ${count(kv.blocks)} blocks`],
    ["Pre-emptions", count(stats.preemptions), "recomputed, not lost"],
    ["Drafter errors", count(stats.drafter_errors), "served without it"],
    ["Up", minutes < 120 ? `${minutes} min` : `${Math.floor(minutes / 60)} h`, `${count(tokens.prompt)} prompt tokens`],
  ];
  $("tiles").replaceChildren(...rows.map(([name, value, more]) =>
    el("div", {"data-tile": name}, el("dt", {}, name), el("dd", {}, value), el("dd", {}, more))));
}

/** The engines of a cluster, one a row. */
function fleet() {
  const {cluster} = stats;
  $("fleet").hidden = !cluster;
  if (!cluster) return;
  const {engines, wanted, coming, lost, moved} = cluster;
  $("fleet-said").textContent = [`${count(wanted)} wanted`, coming && `${count(coming)} starting`,
    `${count(lost)} lost so far`, `${count(moved)} requests moved`].filter(Boolean).join(" · ");
  $("engines").replaceChildren(...engines.map((it) => el("tr", {"data-engine": it.name},
    el("th", {scope: "row"}, it.name),
    ...[it.draining ? "draining" : it.silent ? "silent" : "serving", count(it.running), count(it.waiting), share(it.kv.used, it.kv.blocks),
      it.freeness === null ? "–" : it.freeness.toFixed(0), count(it.generated), count(it.preemptions),
    ].map((value) => el("td", {}, value)))));
}

/** The smallest of 1, 2, 5 times a power of ten that holds `value`. */
function ceiling(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1e-9)));
  return [1, 2, 5, 10].find((step) => step * power >= value * .999) * power;
}

/** Lines over the window, newest at the right; pointing at one reads its value there. */
function chart(id, series, format) {
  const svg = $(id), wide = svg.clientWidth, high = svg.clientHeight - 18, now = stats.uptime_s;
  const WINDOW = Number($("window").value);
  series = series.map(([name, points]) => [name, points.filter(([t]) => t >= now - WINDOW)]);
  const top = ceiling(Math.max(1, ...series.flatMap(([, points]) => points.map(([, y]) => y ?? 0))));
  const x = (t) => wide * (1 - (now - t) / WINDOW), y = (v) => high - (high - 12) * v / top;
  const parts = [0, .5, 1].flatMap((part) => [
    el("line", {class: "grid", x1: 0, x2: wide, y1: y(top * part), y2: y(top * part)}),
    ...(part ? [el("text", {x: 0, y: y(top * part) - 4}, format(top * part))] : []),
  ]);
  for (const [at, label, anchor] of [[0, WINDOW > 300 ? "1 h ago" : "5 min ago", "start"], [wide, "now", "end"]]) {
    parts.push(el("text", {x: at, y: high + 16, "text-anchor": anchor}, label));
  }
  series.forEach(([, points], i) => parts.push(...line(points, x, y, i ? "s1" : "s0", series.length === 1)));
  const at = svg.pointer === undefined ? now : now - WINDOW * (1 - svg.pointer / wide);
  if (at < now) parts.push(el("line", {class: "cross", x1: x(at), x2: x(at), y1: 0, y2: high}));
  const said = reading(series, at, format);
  const when = at < now ? [el("span", {}, `${Math.round(now - at)} s ago`)] : [];
  svg.parentElement.querySelector(".read").replaceChildren(...when, ...said.map((text, i) =>
    el("span", {class: said.length > 1 ? `k${i}` : ""}, text)));
  const caption = svg.parentElement.querySelector("figcaption").firstChild.data.trim();
  svg.setAttribute("aria-label", `${caption}: ${said.join(", ")}`);
  svg.replaceChildren(...parts);
}

/** What each series says at a time. */
function reading(series, at, format) {
  return series.map(([name, points]) => {
    const point = points.findLast(([t, v]) => t <= at + .5 && v !== null);
    return `${name} ${point ? format(point[1]) : "–"}`.trim();
  });
}

/** Paths that break where readings are missing, and the area below a single one. */
function line(points, x, y, kind, filled) {
  const parts = [[]];
  for (const [t, v] of points) {
    const last = parts.at(-1).at(-1);
    if (v === null || (last && t - last[0] > 15)) parts.push([]);
    if (v !== null) parts.at(-1).push([t, v]);
  }
  return parts.filter((part) => part.length).flatMap((part) => {
    const d = "M" + part.map(([t, v]) => `${x(t).toFixed(1)} ${y(v).toFixed(1)}`).join("L") + "h.01";
    const below = `${d}V${y(0)}H${x(part[0][0]).toFixed(1)}Z`;
    return [...(filled ? [el("path", {class: "area", d: below})] : []), el("path", {class: kind, d})];
  });
}

/** Offered and kept at each depth, and the drafters. */
function depths() {
  const {offered, kept, drafters} = counted(), svg = $("c-depth");
  const wide = svg.clientWidth, high = svg.clientHeight - 18, step = Math.min(wide / Math.max(offered.length, 1), 110);
  const top = Math.max(1, ...offered), bar = step * .62, parts = [];
  offered.forEach((all, i) => {
    const x = i * step, size = (n) => (high - 20) * n / top;
    const title = `depth ${i + 1}: ${kept[i]} kept of ${all} offered`;
    for (const [kind, n] of [["offered", all], ["kept", kept[i]]]) {
      parts.push(el("rect", {class: kind, x, y: high - size(n), width: bar, height: size(n)}));
      parts.at(-1).append(document.createElementNS(SVG, "title"));
      parts.at(-1).firstChild.textContent = title;
    }
    const label = {x: x + bar / 2, "text-anchor": "middle"};
    const percent = all ? `${Math.round(100 * kept[i] / all)} %` : "";
    parts.push(el("text", {...label, y: high - size(all) - 5, class: "rate"}, percent));
    parts.push(el("text", {...label, y: high + 15}, String(i + 1)));
  });
  parts.push(el("line", {class: "grid", x1: 0, x2: wide, y1: high, y2: high}));
  const sum = (list) => list.reduce((a, b) => a + b, 0);
  const said = [`${count(sum(kept))} kept`, `of ${count(sum(offered))} offered`];
  const read = svg.parentElement.querySelector(".read");
  read.replaceChildren(...said.map((text, i) => el("span", {class: `q${i}`}, text)));
  svg.setAttribute("aria-label", `Drafted tokens by depth: ${said.join(" ")}`);
  svg.replaceChildren(...parts);
  $("drafters").replaceChildren(...drafters.map(({name, offered: all, kept: good, passes, generated}) => el("tr", {},
    el("th", {scope: "row"}, name === "none" ? "none" : by(name, name)),
    ...[passes ? (generated / passes).toFixed(2) : "–", share(sum(good), sum(all)), count(sum(all)), count(generated),
      count(passes)].map((value) => el("td", {}, value)))));
}

