// -- conversations, kept in this browser -------------------------------------------------------------------------

const MOST_CHATS = 50;
let chat = null;

const blankChat = () => ({id: `${Date.now()}-${Math.random().toString(36).slice(2, 8)}`, at: Date.now(), title: "", system: "", turns: []});
const known = () => kept.get("chats", []);

/** Past turns as messages. */
function past(turns) {
  return turns.filter((turn) => !turn.plain && turn.answer?.text).flatMap((turn) =>
    [{role: "user", content: turn.prompt}, {role: "assistant", content: turn.answer.text}]);
}

/** Write the current one; the oldest go where the browser has no more room. */
function keep() {
  if (!chat.turns.length) return;
  chat.system = $("system").value;
  chat.title ||= chat.turns[0].prompt.trim().split("\n")[0].slice(0, 60);
  chat.at = Date.now();
  const all = [chat, ...known().filter((other) => other.id !== chat.id)].slice(0, MOST_CHATS);
  while (all.length > 1 && !kept.set("chats", all)) all.pop();
  if (all.length === 1) kept.set("chats", all);
  chatList();
}

function chatList() {
  $("kept").replaceChildren(...known().map((each) => {
    const open = button(each.title, () => show(each), new Date(each.at).toLocaleString());
    if (each.id === chat.id) open.setAttribute("aria-current", "true");
    const drop = button("×", () => {
      kept.set("chats", known().filter((other) => other.id !== each.id));
      if (each.id === chat.id) show(null); else chatList();
    });
    drop.setAttribute("aria-label", `Delete ${each.title}`);
    return el("li", {}, open, drop);
  }));
}

/** Put a conversation on the page; null: a new one. */
function show(other) {
  running?.abort();
  chat = other ? structuredClone(other) : blankChat();
  seen.clear();
  Answer.all.clear();
  $("talk").replaceChildren();
  $("talk").classList.remove("wide");
  if (other) $("system").value = chat.system;
  for (const turn of chat.turns) restore(turn);
  legend();
  $("blank").hidden = chat.turns.length > 0;
  chatList();
  say("");
  $("prompt").focus();
}

/** A saved turn on the page. */
function restore(turn) {
  const node = layTurn(turn);
  if (turn.answer) new Answer(node.answers, turn.answer).end();
  if (turn.verdict) node.answers.append(el("p", {class: "verdict"}, turn.verdict));
  node.finish();
}

/** Everything in a file: JSON, which holds all, or Markdown of this conversation. */
function save(name, type, text) {
  const link = el("a", {href: URL.createObjectURL(new Blob([text], {type})), download: name});
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

$("fresh").addEventListener("click", () => show(null));
$("export").addEventListener("click", () => {
  save("paceline-chats.json", "application/json", JSON.stringify(known(), null, 1));
});
$("forget").addEventListener("click", (event) => {
  const node = event.target;
  if (node.dataset.sure) { kept.set("chats", []); show(null); }
  node.textContent = node.dataset.sure ? "Delete all" : "Really all?";
  if (node.dataset.sure) delete node.dataset.sure; else node.dataset.sure = "1";
});
