// -- settings ----------------------------------------------------------------------------------------------------

/** [name, label, kind, tooltip, more]: what a request may ask for. */
const FIELDS = [
  ["temperature", "Temperature", "number", "0 always takes the most probable token; higher is more varied.", {min: 0, value: .7}],
  ["max_tokens", "Max tokens", "number", "Maximum number of tokens in the answer.", {min: 1, step: 1, value: 256}],
  ["top_p", "Top p", "number", "Keep the most probable tokens that together reach this probability, in (0, 1].", {min: 1e-6, max: 1}],
  ["top_k", "Top k", "number", "Keep the k most probable tokens; 0 keeps all.", {min: 0, step: 1}],
  ["min_p", "Min p", "number", "Drop tokens below this share of the highest probability, in [0, 1).", {min: 0, max: .999999}],
  ["seed", "Seed", "number", "The same seed gives the same text, with any drafter.", {min: 0, max: 2 ** 53 - 1, step: 1, hint: "a new one"}],
  ["max_nodes", "Max draft tokens", "number", "Maximum number of drafted tokens per step.", {min: 0, step: 1, hint: "drafter’s"}],
  ["min_tokens", "Min tokens", "number", "Minimum number of tokens in the answer.", {min: 0, step: 1}, 1],
  ["repetition_penalty", "Repetition penalty", "number", "Above 1: tokens seen in prompt or answer become less likely.", {min: .01}, 1],
  ["presence_penalty", "Presence penalty", "number", "Taken once from the score of tokens seen in the answer, in [-2, 2].", {min: -2, max: 2}, 1],
  ["frequency_penalty", "Frequency penalty", "number", "Taken from the score for each time a token was seen, in [-2, 2].", {min: -2, max: 2}, 1],
  ["priority", "Priority", "number", "Lower is served first; needs a server with --order priority.", {min: -100, max: 100, step: 1}, 1],
  ["deadline_ms", "Deadline in ms", "number", "When the answer should be complete; needs --order deadline.", {min: 1}, 1],
  ["stops", "Stop texts", "lines", "End before one of these; one a line.", {}, 1],
  ["bad_words", "Bad words", "lines", "Texts that must not be written; one a line.", {}, 1],
  ["stop_token_ids", "Stop token ids", "ids", "End with one of these ids; separated by commas.", {}, 1],
  ["allowed_tokens", "Allowed token ids", "ids", "Nothing but these ids can be drawn; separated by commas.", {}, 1],
  ["logit_bias", "Logit bias", "json", 'Added to scores: {"token id": number}.', {}, 1],
  ["schema", "JSON schema", "json", "The answer is JSON that keeps to this schema.", {}, 1],
  ["ignore_eos", "Go on after the end", "check", "The model’s own end of text does not end the answer.", {}, 1],
  ["include_stop", "Keep the stop text", "check", "The text that ended the answer stays in it.", {}, 1],
  ["show_special", "Show special tokens", "check", "Tokens such as the end of a turn are written out.", {}, 1],
];
const LIMITS = {
  max_nodes: "Max draft tokens must be a whole number, 0 or more", temperature: "Temperature must be 0 or more",
  max_tokens: "Max tokens must be a whole number, 1 or more", seed: "Seed must be a whole number from 0 to 2^53 - 1",
};

function layFields() {
  const more = el("details", {}, el("summary", {}, "More sampling fields")), pairs = [el("div", {class: "pair"}), el("div", {class: "pair"})];
  $("fields").append(pairs[0], more);
  more.append(pairs[1]);
  for (const [id, label, kind, tip, {hint, ...limits}, hidden = 0] of FIELDS) {
    const note = el("span", {class: "tip", tabindex: "0", role: "note", "aria-label": `${label}: ${tip}`, "data-tip": tip}, "?");
    let node;
    if (kind === "number") node = el("input", {id, type: "number", step: "any", placeholder: hint ?? "model’s", ...limits});
    else if (kind === "check") node = el("input", {id, type: "checkbox"});
    else node = el("textarea", {id, rows: kind === "ids" ? "1" : "2", placeholder: "none", spellcheck: "false"});
    const name = el("span", {}, label);
    name.append(note);
    node.setAttribute("aria-label", label);
    const box = kind === "check" ? el("label", {class: "check wide"}, node, name) : el("label", kind === "number" ? {} : {class: "wide"}, name, node);
    pairs[hidden].append(box);
  }
}

/** A field's value; undefined when it is empty: the server's default holds. Throws what is wrong with it. */
function value(id) {
  const field = $(id), [, label, kind] = FIELDS.find(([name]) => name === id), text = field.value.trim();
  if (kind === "check") return field.checked || undefined;
  if (kind === "number") {
    if (!field.checkValidity()) throw new Error(`${LIMITS[id] ?? `${label}: ${field.validationMessage}`}; correct it under Settings.`);
    return text === "" ? undefined : Number(text);
  }
  if (!text) return undefined;
  if (kind === "lines") return field.value.split("\n").filter((line) => line);
  try { return JSON.parse(kind === "ids" ? `[${text}]` : text); } catch {
    throw new Error(`${label} is not ${kind === "ids" ? "a list of numbers" : "JSON"}; correct it under Settings.`);
  }
}

/** What the settings ask for, without the drafter. */
function wish(prompt, before) {
  const chat = $("kind").value === "chat", system = $("system").value.trim();
  const body = {
    model: $("model").value || stats?.model, stream: true, stream_options: {include_usage: true},
    ...(chat ? {messages: [...(system ? [{role: "system", content: system}] : []), ...before, {role: "user", content: prompt}]} : {prompt}),
  };
  const own = new Set(["schema", "max_nodes", "show_special", "stops"]);
  for (const [id] of FIELDS) if (!own.has(id)) body[id] = value(id);
  body.stop = value("stops");
  if (value("show_special")) body.skip_special_tokens = false;
  const schema = value("schema");
  if (schema !== undefined) body.grammar = {kind: "json_schema", text: JSON.stringify(schema)};
  const policy = $("policy").value;
  if (policy && chat) body.reasoning = {policy, ...(policy === "steps" && $("tau").value !== "" && {tau: Number($("tau").value)})};
  body.seed ??= Math.floor(Math.random() * 2 ** 32);
  return body;
}

function speculation(drafter) {
  const nodes = drafter === "none" ? undefined : value("max_nodes");
  return {drafter, max_nodes: nodes, verifier: $("verifier").value || undefined, trace: true};
}

const THEMES = {auto: ["Auto", "light dark", "as the system"], light: ["Light", "light", "light"], dark: ["Dark", "dark", "dark"]};

function theme(name) {
  const [label, scheme, told] = THEMES[name];
  document.documentElement.style.colorScheme = scheme;
  $("theme").textContent = label;
  $("theme").setAttribute("aria-label", `Theme: ${told}`);
  kept.set("theme", name);
}

$("policy").addEventListener("change", () => { $("taus").hidden = $("policy").value !== "steps"; });
layFields();
theme(Object.hasOwn(THEMES, kept.get("theme", "auto")) ? kept.get("theme", "auto") : "auto");
$("theme").addEventListener("click", () => {
  const names = Object.keys(THEMES);
  theme(names[(names.indexOf(kept.get("theme", "auto")) + 1) % names.length]);
});
$("form").addEventListener("submit", (event) => event.preventDefault());
$("markdown").addEventListener("change", () => Answer.all.forEach((answer) => answer.draw()));
$("key").value = sessionStorage.getItem("paceline-key") ?? "";
$("key").addEventListener("input", () => sessionStorage.setItem("paceline-key", $("key").value));
$("key").addEventListener("change", () => poll());

/** Drawers of narrow screens: one open at a time. */
for (const [id, drawer] of [["open", "settings"], ["list", "chats"]]) {
  $(id).addEventListener("click", () => {
    const open = !$(drawer).classList.contains("open");
    for (const [other, side] of [["open", "settings"], ["list", "chats"]]) {
      $(side).classList.toggle("open", open && side === drawer);
      $(other).setAttribute("aria-expanded", open && side === drawer);
    }
  });
}
