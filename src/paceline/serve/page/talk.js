// -- sending -----------------------------------------------------------------------------------------------------

let running = null, editing = null;

/** A turn on the page: what was asked, what one can do about it, and a place for answers. */
function layTurn(turn) {
  const asked = el("div", {class: "asked"}, turn.prompt), acts = el("div", {class: "acts"}), answers = el("div");
  const section = el("section", {class: "turn"}, asked, acts, answers);
  $("talk").append(section);
  Object.defineProperty(turn, "section", {value: section, enumerable: false, configurable: true, writable: true});
  const finish = () => acts.replaceChildren(
    button("Copy", (node) => copy(turn.answer?.text ?? "", node), "Copy the answer as it was written"),
    button("Edit", () => edit(turn), "Change the message; what came after it goes"),
    button("Regenerate", () => again(turn), "Answer once more, with a new seed; what came after it goes"),
  );
  return {section, answers, finish};
}

/** Forget a turn and those after it. */
function dropFrom(turn) {
  const at = chat.turns.indexOf(turn);
  if (at < 0) return;
  for (const gone of chat.turns.splice(at)) gone.section.remove();
}

function edit(turn) {
  editing = turn;
  $("prompt").value = turn.prompt;
  $("prompt").focus();
  say("Editing; Escape keeps the message as it was.");
}

function again(turn) {
  if (running) return;
  dropFrom(turn);
  $("seed").value = "";
  send(turn.prompt);
}

async function send(prompt) {
  const beside = $("beside").checked, name = $("drafter").value, mine = chat;
  const turn = {prompt, plain: $("kind").value !== "chat"}, before = past(mine.turns);
  const node = layTurn(turn);
  mine.turns.push(turn);
  $("blank").hidden = true;
  busy(new AbortController());
  let answer = null;
  try {
    const body = wish(prompt, before);
    if (beside && name === "none") throw new Error("Both sides would be plain; choose a drafter under Settings.");
    answer = await (beside ? compare : single)(node.answers, body, name, (begun) => { answer = begun; }, turn);
    say(`Finished: ${count(answer.figure.tokens)} tokens, tau ${answer.figure.tau.toFixed(2)}.`);
  } catch (error) {
    if (error.name === "AbortError") { node.answers.append(el("p", {class: "small"}, "Stopped.")); say("Stopped."); }
    else fail(node.section, error.message, prompt);
  } finally {
    node.section.querySelectorAll("[aria-busy]").forEach((each) => each.removeAttribute("aria-busy"));
    busy(null);
  }
  if (answer) turn.answer = answer.saved();
  node.finish();
  if (mine === chat) keep();
  scroll();
}

async function single(parent, body, drafter, started) {
  const answer = new Answer(parent, {seed: body.seed, plain: !("messages" in body)});
  started(answer);
  try { await ask(answer, {...body, speculation: speculation(drafter)}, running.signal); } finally { answer.end(); }
  return answer;
}

/** The same request twice, one after the other, once its prompt is cached for both. */
async function compare(parent, body, drafter, started, turn) {
  const left = el("div"), right = el("div"), first = {...body, max_tokens: 1, min_tokens: undefined, speculation: speculation(drafter)};
  await ask({write() {}}, first, running.signal);
  $("talk").classList.add("wide");
  parent.append(el("div", {class: "both"}, left, right));
  left.append(el("h3", {}, "Plain"));
  const plain = await single(left, body, "none", started);
  right.append(el("h3", {}, "Speculative"));
  const fast = await single(right, body, drafter, started);
  right.firstChild.textContent = `Speculative: ${fast.usage?.speculation?.drafter ?? drafter}`;
  turn.verdict = verdict(plain, fast);
  parent.append(el("p", {class: "verdict"}, turn.verdict));
  return fast;
}

function verdict(plain, fast) {
  const ratio = fast.figure.rate / plain.figure.rate;
  const speed = `Speculative ran at ${ratio.toFixed(2)} times the speed of plain decoding`;
  if (plain.text === fast.text) return `${speed}, and the texts are identical.`;
  const at = [...plain.text].findIndex((c, i) => c !== [...fast.text][i]);
  const place = at < 0 ? "one is longer" : `they part at character ${at + 1}`;
  return `${speed}, but the texts differ: ${place}.`;
}

function busy(controller) {
  running = controller;
  $("stop").hidden = !running;
  $("send").hidden = Boolean(running);
  if (running) say("Answering…");
}

/** Show the sentence, and give the message back where the field is free. */
function fail(section, sentence, prompt) {
  section.append(el("p", {class: "error", role: "alert"}, sentence));
  if (!$("prompt").value) $("prompt").value = prompt;
  say("");
}

const scroll = () => { $("scroll").scrollTop = $("scroll").scrollHeight; };

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const prompt = $("prompt").value;
  if (running || !prompt.trim()) return;
  $("prompt").value = "";
  if (editing) dropFrom(editing);
  editing = null;
  send(prompt);
  scroll();
});
$("prompt").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  $("composer").requestSubmit();
});
$("stop").addEventListener("click", () => { running?.abort(); $("prompt").focus(); });
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  running?.abort();
  if (editing) { editing = null; $("prompt").value = ""; say(""); }
});
$("examples").addEventListener("click", (event) => {
  if (event.target.tagName !== "BUTTON") return;
  $("prompt").value = event.target.textContent.trim();
  $("prompt").focus();
});
