// -- an answer on the page ---------------------------------------------------------------------------------------

function hue(author) {
  const names = (stats?.drafters ?? []).filter((name) => name !== "none");
  if (!names.includes(author)) names.push(...hue.more.add(author));
  return (names.indexOf(author) * 137.5 + 250) % 360;
}
hue.more = new Set();

function by(author, text, title = "") {
  const span = el("span", {class: "by", "data-author": author, ...(title && {title})}, text);
  span.style.setProperty("--hue", hue(author));
  return span;
}

/** Models that write parts of a text by themselves, under a policy. */
const WRITERS = new Set(["small", "base", "mentor"]);
const seen = new Set();
function legend() {
  const items = [...seen].map((author) => el("li", {}, by(author, author, about(author))));
  $("legend").replaceChildren(...(items.length ? [el("li", {}, "the model itself"), ...items] : []));
}

/** A text in runs: [text, author, tokens], shown plain or as Markdown, coloured either way. */
class Coloured {
  runs = []; starts = []; text = "";

  constructor(name, pieces = []) {
    this.node = el("div", {class: name});
    for (const [text, author, tokens] of pieces) this.add(text, author, tokens);
  }

  /** Neighbours by one author are what one pass confirmed: they stand as one. */
  add(text, author, tokens = 1, fresh = false) {
    const last = this.runs.at(-1);
    if (last?.[1] === author && !fresh) {
      last[0] += text;
      last[2] += tokens;
    } else {
      this.runs.push([text, author, tokens]);
      this.starts.push(this.text.length);
    }
    this.text += text;
    if (author !== "target" && !seen.has(author)) { seen.add(author); legend(); }
  }

  /** Nodes of a part of the text. */
  part(from, to) {
    let low = 0, high = this.starts.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.starts[middle] <= from) low = middle; else high = middle - 1;
    }
    const nodes = [];
    for (let i = low; i < this.runs.length && this.starts[i] < to; i += 1) {
      const [text, author, tokens] = this.runs[i];
      const run = text.slice(Math.max(from - this.starts[i], 0), to - this.starts[i]);
      if (!run) continue;
      nodes.push(author === "target" ? run : by(author, run, `${tokens} token${tokens > 1 ? "s" : ""} ${WRITERS.has(author) ? "written" : "drafted"} by ${author}`));
    }
    return nodes;
  }

  /** Show what there is. Long texts are not formatted: it would be repeated with every piece. */
  draw(formatted) {
    const plain = (from, to) => this.part(from, to);
    const whole = formatted && this.text.length < 60000;
    this.node.classList.toggle("formatted", whole);
    this.node.replaceChildren(...(whole ? markdown(this.text, plain) : this.part(0, this.text.length)));
    this.node.raw = this.text;
  }
}

/** Text, its sources, and its figures, as they grow. */
class Answer {
  text = ""; usage = null; finish = null; tokens = 0; passes = 0; first = null; took = 0; clock = () => 0;

  constructor(parent, saved = {}) {
    Object.assign(this, saved);
    this.thought = new Coloured("thought", saved.thoughts);
    this.body = new Coloured("text", saved.runs);
    this.figures = el("dl", {class: "figures"});
    this.body.node.setAttribute("aria-busy", "true");
    parent.append(this.thought.node, this.body.node, this.figures);
    Answer.all.add(this);
  }

  write(text, pieces, thought) {
    this.first ??= this.clock();
    this.took = this.clock();
    if (!thought) this.text += text;
    const to = thought ? this.thought : this.body;
    (pieces ?? [[text, "target"]]).forEach(([run, author], i) => {
      to.add(run, author, 1, i === 0);
      this.tokens += 1;
      if (author === "target") this.passes += 1;
    });
    this.later();
  }

  /** Drawn once a frame, however many pieces came. */
  later() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => { this.frame = 0; this.draw(); follow(); });
  }

  draw() {
    const formatted = $("markdown").checked && !this.plain;
    this.thought.draw(false);
    this.body.draw(formatted);
    this.show();
  }

  /** Counted from the pieces while it streams (a pass ends with the model's own token), then the server's count. */
  get figure() {
    const own = this.usage?.speculation, tokens = this.usage?.completion_tokens ?? this.tokens;
    return {tokens, rate: this.took ? tokens / this.took : 0, tau: own ? own.tau : tokens / Math.max(this.passes, 1)};
  }

  show() {
    const {tokens, rate: speed, tau} = this.figure;
    const rows = [["tokens/s", rate(speed)], ["tau", tau.toFixed(2)], ["tokens", count(tokens)],
      ["time", seconds(this.took)], ["first token", seconds(this.first ?? 0)]];
    if (this.usage?.speculation?.drafted) {
      rows.splice(2, 0, ["of drafts kept", share(this.usage.speculation.accepted, this.usage.speculation.drafted)]);
    }
    const two = this.reasoning;
    if (two) {
      const scores = two.segments.filter((each) => each.score != null).map((each) => each.score.toFixed(1));
      rows.splice(2, 0, ["proposals kept", share(two.accepted, two.proposed)]);
      if (scores.length) rows.push(["scores", scores.slice(0, 12).join(" ")]);
      if (two.rollbacks.length) rows.push(["rolled back", `${count(two.rollbacks.reduce((sum, each) => sum + each.tokens, 0))} tokens`]);
      rows.push(["ended by", two.ended]);
    }
    if (this.seed !== undefined) rows.push(["seed", String(this.seed)]);
    this.figures.replaceChildren(...rows.map(([name, value]) =>
      el("div", {"data-figure": name}, el("dt", {}, name), el("dd", {}, value))));
  }

  end() {
    cancelAnimationFrame(this.frame);
    this.body.node.removeAttribute("aria-busy");
    this.draw();
    if (!this.tokens && !this.usage) this.figures.replaceChildren();
  }

  /** What is kept of it. */
  saved() {
    const {text, usage, finish, tokens, passes, first, took, seed, plain, reasoning} = this;
    return {text, usage, finish, tokens, passes, first, took, seed, plain, reasoning, thoughts: this.thought.runs, runs: this.body.runs};
  }
}
Answer.all = new Set();

/** Keep the end in view, unless the reader scrolled up. */
function follow() {
  const box = $("scroll");
  if (box.scrollHeight - box.scrollTop - box.clientHeight < 160) box.scrollTop = box.scrollHeight;
}
