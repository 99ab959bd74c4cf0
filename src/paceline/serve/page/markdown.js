// -- Markdown ----------------------------------------------------------------------------------------------------
// Text with authors to nodes: nothing of it is ever parsed as HTML, no picture is loaded, no link but http(s) is one.

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)/, HEADING = /^(#{1,6})\s+(?=\S)/, QUOTE = /^ {0,3}> ?/;
const ITEM = /^(\s*)(?:[-*+]|(\d{1,9})[.)])\s+(?=\S)/, RULE = /^ {0,3}(?:(?:\* *){3,}|(?:- *){3,}|(?:_ *){3,})$/;
const DEEPEST = 12;  // quotes, lists and emphasis inside one another; what is deeper stays as it is written
const DIVIDER = /^ *(?:\| *)?(?::?-+:? *\| *)+(?::?-+:? *)?$/;

/** `plain(from, to)`: nodes of that part of `text`, coloured by source. */
function markdown(text, plain) {
  const lines = [];
  for (let at = 0; at <= text.length;) {
    const end = text.indexOf("\n", at) < 0 ? text.length : text.indexOf("\n", at);
    lines.push({at, end, text: text.slice(at, end)});
    at = end + 1;
  }
  return blocks(lines, text, plain);
}

function blocks(lines, text, plain, depth = 0) {
  const out = [];
  if (depth >= DEEPEST) return lines.map((line) => el("p", {}, ...plain(line.at, line.end)));
  for (let i = 0; i < lines.length;) {
    const line = lines[i], found = FENCE.exec(line.text);
    let j = i + 1;
    if (!line.text.trim()) { i += 1; continue; }
    if (found) {
      while (j < lines.length && !lines[j].text.trim().startsWith(found[1])) j += 1;
      const body = lines.slice(i + 1, j);
      out.push(code(body.length ? plain(body[0].at, body.at(-1).end) : [], found[2], body.map((l) => l.text).join("\n")));
      i = j + 1;
      continue;
    }
    const heading = HEADING.exec(line.text);
    if (heading) {
      out.push(el(`h${Math.min(heading[1].length + 2, 6)}`, {}, ...spans(line.at + heading[0].length, line.end, text, plain)));
    } else if (RULE.test(line.text)) {
      out.push(el("hr"));
    } else if (QUOTE.test(line.text)) {
      while (j < lines.length && QUOTE.test(lines[j].text)) j += 1;
      out.push(el("blockquote", {}, ...blocks(lines.slice(i, j).map((l) => cut(l, QUOTE.exec(l.text)[0].length)), text, plain, depth + 1)));
    } else if (ITEM.test(line.text)) {
      j = items(lines, i, text, plain, out, depth + 1);
    } else if (DIVIDER.test(lines[j]?.text ?? "") && line.text.includes("|")) {
      for (j += 1; j < lines.length && lines[j].text.includes("|"); j += 1);
      out.push(table(lines.slice(i, j), text, plain));
    } else {
      const ends = (l) => !l.text.trim() || FENCE.test(l.text) || HEADING.test(l.text) || QUOTE.test(l.text) || ITEM.test(l.text);
      while (j < lines.length && !ends(lines[j])) j += 1;
      out.push(el("p", {}, ...spans(line.at, lines[j - 1].end, text, plain)));
    }
    i = j;
  }
  return out;
}

const cut = (line, n) => ({at: line.at + n, end: line.end, text: line.text.slice(n)});

function code(nodes, language, source) {
  const head = el("div", {class: "bar-code"}, language || "code");
  head.append(button("Copy", (node) => copy(source, node)));
  return el("div", {class: "code"}, head, el("pre", {tabindex: "0"}, el("code", {}, ...nodes)));
}

/** A list from line i on, nested ones by indentation; returns the line behind it. */
function items(lines, i, text, plain, out, level) {
  const first = ITEM.exec(lines[i].text), depth = first[1].length;
  const list = first[2] === undefined ? el("ul") : el("ol", {start: first[2]});
  while (i < lines.length) {
    const head = ITEM.exec(lines[i].text);
    if (!head || head[1].length < depth || (head[2] === undefined) !== (first[2] === undefined)) break;
    let j = i + 1;
    const inside = (l) => !l.text.trim() || /^\s/.test(l.text) && (ITEM.exec(l.text)?.[1].length ?? depth + 1) > depth;
    while (j < lines.length && inside(lines[j])) j += 1;
    while (j > i + 1 && !lines[j - 1].text.trim()) j -= 1;
    const body = [cut(lines[i], head[0].length), ...lines.slice(i + 1, j).map((l) => cut(l, Math.min(l.text.search(/\S|$/), head[0].length)))];
    const parts = blocks(body, text, plain, level);
    if (parts[0]?.nodeName === "P") parts.splice(0, 1, ...parts[0].childNodes);
    list.append(el("li", {}, ...parts));
    i = j;
    while (i < lines.length && !lines[i].text.trim() && ITEM.test(lines[i + 1]?.text ?? "")) i += 1;
  }
  out.push(list);
  return i;
}

function table(lines, text, plain) {
  const row = (line, name) => {
    const cells = [];
    let at = line.at + (line.text.startsWith("|") ? 1 : 0);
    for (let k = at; k <= line.end; k += 1) {
      if (k < line.end && (text[k] !== "|" || text[k - 1] === "\\")) continue;
      if (k < line.end || text.slice(at, k).trim()) cells.push(el(name, {}, ...spans(...trimmed(at, k, text), text, plain)));
      at = k + 1;
    }
    return el("tr", {}, ...cells);
  };
  const [head, , ...body] = lines;
  return el("div", {class: "whole"}, el("table", {}, el("thead", {}, row(head, "th")), el("tbody", {}, ...body.map((l) => row(l, "td")))));
}

function trimmed(from, to, text) {
  while (from < to && text[from] === " ") from += 1;
  while (to > from && text[to - 1] === " ") to -= 1;
  return [from, to];
}

// Underscores and stars within words are letters here: code and sums have them.
const INLINE = [
  [/(`+)(?!`)([^]*?[^`])\1(?!`)/y, (m) => ["code", 2, m[1].length]],
  [/(\*\*|__)(?=\S)([^]*?\S)\1(?![\w*])/y, () => ["strong", 2, 2]],
  [/([*_])(?=[^\s*_])([^*_]*?[^\s*_])\1(?![\w*_])/y, () => ["em", 2, 1]],
  [/(~~)(?=\S)([^]*?\S)\1/y, () => ["del", 2, 2]],
  [/!\[([^\]]*)\]\(([^()\s]*)\)/y, () => ["span", 1, 2]],
  [/\[([^\]]+)\]\((https?:\/\/[^()\s]+)\)/y, () => ["a", 1, 1]],
];

/** Nodes of a stretch of running text. A stretch that is very long is left as it is: patterns take their time. */
function spans(from, to, text, plain, depth = 0) {
  if (to - from > 20000 || depth >= DEEPEST) return plain(from, to);
  const out = [], part = text.slice(from, to);
  let at = 0;
  for (let i = 0; i < part.length; i += 1) {
    if (!"`*_~![".includes(part[i]) || ("*_".includes(part[i]) && /\w/.test(part[i - 1] ?? " "))) continue;
    for (const [pattern, kind] of INLINE) {
      pattern.lastIndex = i;
      const found = pattern.exec(part);
      if (!found) continue;
      const [name, group, skip] = kind(found), start = from + i + skip, end = start + found[group].length;
      const inner = name === "code" ? plain(start, end) : spans(start, end, text, plain, depth + 1);
      const link = {href: found[2], target: "_blank", rel: "noopener noreferrer nofollow", title: found[2]};
      out.push(...plain(from + at, from + i), el(name, name === "a" ? link : {}, ...inner));
      i += found[0].length - 1;
      at = i + 1;
      break;
    }
  }
  return [...out, ...plain(from + at, to)];
}
