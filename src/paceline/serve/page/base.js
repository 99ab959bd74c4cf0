const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
let stats = null, readings = [], outage = "";
const SHAPES = new Set(["svg", "path", "line", "rect", "text"]);

/** An element with attributes and children; text goes in as text, never as HTML. */
function el(name, attributes = {}, ...children) {
  const node = SHAPES.has(name) ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

const whole = new Intl.NumberFormat("en", {maximumFractionDigits: 1});
const count = (n) => n >= 1e5 ? new Intl.NumberFormat("en", {notation: "compact"}).format(n) : whole.format(n);
const rate = (n) => n < 10 ? n.toFixed(1) : count(Math.round(n));
const share = (part, all) => all ? `${(100 * part / all).toFixed(part && part < all ? 1 : 0)} %` : "–";
const seconds = (s) => s < 1 ? `${(1000 * s).toFixed(0)} ms` : `${s.toFixed(2)} s`;
const say = (text) => { $("status").textContent = text; };

/** A small button. */
function button(name, act, title = "") {
  const node = el("button", {type: "button", class: "act", ...(title && {title})}, name);
  node.addEventListener("click", () => act(node));
  return node;
}

/** To the clipboard; where the browser does not let a page, through a selection. */
async function copy(text, node) {
  const label = node.textContent;
  try { await navigator.clipboard.writeText(text); } catch {
    const area = el("textarea", {"aria-hidden": "true", class: "off"});
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  node.textContent = "Copied";
  setTimeout(() => { node.textContent = label; }, 1200);
}

/** What this browser keeps; a browser that keeps nothing is fine, too. */
const kept = {
  get(name, other) { try { return JSON.parse(localStorage.getItem(`paceline-${name}`)) ?? other; } catch { return other; } },
  set(name, value) { try { localStorage.setItem(`paceline-${name}`, JSON.stringify(value)); return true; } catch { return false; } },
};
