// What changes a row of logits before it is drawn from: sample/processors.py and sample/history.py are the slow twins.
#pragma once

#include "base.h"

extern "C" {
struct Rules {  // of a text: core/warp.py
  i64 allowed;         // -1: all
  const i64* allow;
  i64 words;           // that must not be completed
  const i64 *size, *word;  // [words]; tokens of one behind the other
  i64 tailed;          // tokens of the output's end
  const i64* tail;
  i64 left, ends;      // tokens to come before any of `end` can be drawn
  const i64* end;
  i64 biased;
  const i64* bias_of;
  const double* bias;
  double repetition, presence, frequency;
  i64 known;           // distinct tokens of the prompt, ascending
  const i64* prompt;
  i64 fresh;           // distinct tokens of the output that the prompt does not have
  const i64* fresh_token;
  i64 counted;         // distinct tokens of the output, and how often each occurs
  const i64 *token, *times;
};
}

// Change the logits x [n] of the row behind the text that the rules are of and then `path`. word [n]: their ids, ascending; or null
static void edit(float* x, i64 n, const Rules& it, const std::vector<i64>& path, const i64* word = nullptr) {
  const i64 more = path.size();
  auto place_of = [=](i64 id) -> i64 {  // -1: none
    if (!word) return id >= 0 && id < n ? id : -1;
    const i64 at = std::lower_bound(word, word + n, id) - word;
    return at < n && word[at] == id ? at : -1;
  };
  auto set_to = [&](i64 id, auto value) {
    if (const i64 at = place_of(id); at >= 0) x[at] = value(x[at]);
  };
  auto remove = [&](i64 id) { set_to(id, [](float) { return -INFINITY; }); };
  if (it.allowed >= 0) {
    static thread_local std::vector<float> kept;
    kept.clear();
    for (i64 i = 0; i < it.allowed; i++) kept.push_back(place_of(it.allow[i]) < 0 ? 0 : x[place_of(it.allow[i])]);
    std::fill_n(x, n, -INFINITY);
    for (i64 i = 0; i < it.allowed; i++) set_to(it.allow[i], [&](float) { return kept[i]; });
  }
  auto behind = [&](i64 back) {  // the token that many places before the next one, -1 before the output
    if (back <= more) return path[more - back];
    return back - more <= it.tailed ? it.tail[it.tailed - (back - more)] : -1;
  };
  const i64* bad = it.word;
  for (i64 w = 0; w < it.words; bad += it.size[w++]) {
    const i64 last = it.size[w] - 1;
    bool ends = true;
    for (i64 i = 0; i < last && ends; i++) ends = behind(last - i) == bad[i];
    if (ends) remove(bad[last]);
  }
  if (more < it.left)
    for (i64 i = 0; i < it.ends; i++) remove(it.end[i]);
  for (i64 i = 0; i < it.biased; i++) set_to(it.bias_of[i], [&](float z) { return z + (float)it.bias[i]; });
  const bool repeats = it.repetition != 1, counts = it.presence || it.frequency;
  if (!repeats && !counts) return;
  static thread_local std::vector<std::pair<i64, i64>> rest;  // tokens that only the path has
  static thread_local std::vector<i64> times;
  rest.clear(), times.assign(it.times, it.times + it.counted);
  for (i64 token : path) {
    const i64 place = std::find(it.token, it.token + it.counted, token) - it.token;
    if (place < it.counted) {
      times[place]++;
      continue;
    }
    auto at = std::find_if(rest.begin(), rest.end(), [=](auto& each) { return each.first == token; });
    if (at == rest.end()) rest.push_back({token, 1});
    else at->second++;
  }
  if (repeats) {
    const float by = (float)it.repetition;
    auto repeat = [&](i64 id) { set_to(id, [=](float z) { return z > 0 ? z / by : z * by; }); };
    for (i64 i = 0; i < it.known; i++) repeat(it.prompt[i]);
    for (i64 i = 0; i < it.fresh; i++) repeat(it.fresh_token[i]);
    for (auto [token, _] : rest)
      if (!std::binary_search(it.prompt, it.prompt + it.known, token)) repeat(token);
  }
  if (!counts) return;
  auto count = [&](i64 id, i64 often) {
    const volatile float by = (float)it.frequency * (float)often;  // rounded before it is added, as torch does
    const volatile float all = (float)it.presence + by;
    set_to(id, [&](float z) { return z - all; });
  };
  for (i64 i = 0; i < it.counted; i++) count(it.token[i], times[i]);
  for (auto [token, often] : rest) count(token, often);
}

// The path of a node of a tree: what was said, then the tokens of the nodes from depth 1 down to it; -1: the root
template <class Token, class Parent>
static const std::vector<i64>& path_of(const i64* said, i64 count, i64 node, Token token, Parent parent) {
  static thread_local std::vector<i64> path;
  path.clear();
  for (; node >= 0; node = parent(node)) path.push_back(token(node));
  path.insert(path.end(), std::make_reverse_iterator(said + count), std::make_reverse_iterator(said));
  std::reverse(path.begin(), path.end());
  return path;
}
