// Several passes in one call, each with a draft or without. Included by decoder.cpp.
#pragma once

#include "draft.h"
#include "lookup.h"

struct Run {  // of passes over the texts of a pass that has one row of each. Behind a token of its `end` a text has ended
  i64 passes, room, ends;
  const i64* most;            // [texts] tokens
  const double* temperature;  // [texts]
  const i64 *keys, *end;      // [texts][room], [texts][ends]
  i64 drafts;                 // texts that are drafted for
  const i64 *whose, *chain;   // [drafts]: text; longest chain
  const double* worth;        // [drafts]
  const Model* drafter;       // who drafts, or null
  const Pass* behind;         // what it lacks of them, a segment each
  double share, sharp;
  i64 longest;                // match of prompt lookup, which drafts if there is no drafter
  const i64 *history, *size;  // [drafts]: all tokens, text behind text; how many
  const double* rate;         // [drafts][longest + 1][hits, tries]
  double stamina, memory;
  i64 *tokens, *length;       // [texts][room], [texts]
  i64 *drafted, *kept;        // [texts][passes]; -1 where none was made
  i64* reach;                 // [drafts]: rows that the drafter has in the end
  double seconds;             // of drafting
};

struct Text {
  i64 drawn = 0;   // tokens
  i64 place = -1;  // among those that are drafted for
  i64 first = 0;   // row
  std::vector<i64> draft;
};

struct Runner {
  const Model& m;
  const Pass& p;
  Run& run;
  std::vector<Text> texts = std::vector<Text>(p.segments);
  std::vector<i64> live, whose, won;  // texts; of each chain, or row; tokens
  std::vector<Chain> chains;
  std::vector<Lookup> lookups;  // one for each that is drafted for
  Laid rows{m.block_size, p.width, p.seconds}, lacking{m.block_size, run.drafter ? run.behind->width : 0, nullptr};

  i64 length(i64 i) const { return p.segment[i].base + 1 + texts[i].drawn; }
  i64 token(i64 i, i64 place) const {  // from the text's last one on, before this run
    const i64 rank = place - p.segment[i].base;
    return rank ? run.tokens[i * run.room + rank - 1] : p.token[p.segment[i].start];
  }
  const i64* keys(i64 i) const { return run.keys + i * run.room + texts[i].drawn; }

  void go() {
    for (i64 i = 0; i < p.segments; i++) live.push_back(i);
    const i64* history = run.history;
    for (i64 d = 0; d < run.drafts; d++) {
      texts[run.whose[d]].place = d;
      if (run.drafter) {
        run.reach[d] = run.behind->segment[d].base;
      } else {
        const double* rate = run.rate + d * 2 * (run.longest + 1);
        lookups.push_back({{history, history + run.size[d]}, {rate, rate + 2 * (run.longest + 1)}, run.stamina, run.memory});
        history += run.size[d];
      }
    }
    std::fill(run.drafted, run.drafted + p.segments * run.passes, -1);
    for (i64 step = 0; step < run.passes && !live.empty(); step++) {
      if (run.drafts) propose(step == 0);
      verify();
      settle(step);
    }
    for (i64 i = 0; i < p.segments; i++) run.length[i] = texts[i].drawn;
  }

  void propose(bool begins) {
    const auto start = std::chrono::steady_clock::now();
    run.drafter ? ask(begins) : look();
    run.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  i64 deep(i64 i) const {  // the longest chain that a text may have now
    const i64 d = texts[i].place;
    return d < 0 ? 0 : std::min(run.chain[d], run.most[i] - texts[i].drawn - 1);
  }

  void look() {
    for (i64 i : live) {
      const i64 d = texts[i].place;
      if (d < 0) continue;
      for (i64 j = lookups[d].tokens.size() - run.size[d]; j < texts[i].drawn; j++)
        lookups[d].append(run.tokens[i * run.room + j]);
      lookups[d].draft(deep(i), run.worth[d], texts[i].draft);
    }
  }

  void ask(bool begins) {
    const Pass& behind = *run.behind;
    lacking.clear(), chains.clear(), whose.clear();
    for (i64 i : live) {
      Text& text = texts[i];
      const i64 s = text.place;
      text.draft.resize(deep(i));
      if (text.draft.empty()) continue;
      const i64 first = run.reach[s], last = length(i) - 1;
      lacking.text(first, behind.table + s * behind.width);
      for (i64 j = first; j <= last; j++)
        lacking.row(begins ? behind.token[behind.segment[s].start + j - first] : token(i, j), j, j, 0, j == last);
      chains.push_back({(i64)text.draft.size(), run.temperature[i], run.worth[s], keys(i), text.draft.data()});
      whose.push_back(i);
      run.reach[s] = last + 1;
    }
    if (!chains.empty()) draft(*run.drafter, lacking.pass(*run.drafter), chains, run.share, run.sharp);
    for (size_t c = 0; c < chains.size(); c++) texts[whose[c]].draft.resize(chains[c].count);
  }

  void verify() {
    rows.clear(), whose.clear();
    for (i64 i : live) {
      const i64 last = length(i) - 1, count = texts[i].draft.size();
      texts[i].first = whose.size();
      whose.insert(whose.end(), count + 1, i);
      rows.text(last, p.table + i * p.width);
      rows.row(token(i, last), last, last, 0, true);
      for (i64 j = 1; j <= count; j++) rows.row(texts[i].draft[j - 1], last + j, last + j, ~0ull >> (64 - j), true);
    }
    const Pass pass = rows.pass(m);
    forward(m, pass);
    won.resize(whose.size());
    parallel(m.threads, won.size(), [&](i64 r) {
      static thread_local Room bounds, law;
      const i64 i = whose[r];
      const float* z = pass.logits + r * m.vocab;
      float top;
      if (run.temperature[i] > 0) {
        log_law(z, m.vocab, run.temperature[i], room<float>(law, m.vocab));
        won[r] = race((float*)law.data(), m.vocab, 1, keys(i)[r - texts[i].first], bounds);
      } else {
        won[r] = largest(z, m.vocab, top);
      }
    });
  }

  void settle(i64 step) {
    std::vector<i64> going;
    for (i64 i : live) {
      Text& text = texts[i];
      const i64 count = text.draft.size(), *end = run.end + i * run.ends;
      i64 kept = 0;
      bool ended, good;
      do {
        const i64 next = won[text.first + kept];
        run.tokens[i * run.room + text.drawn++] = next;
        ended = next < 0 || text.drawn == run.most[i] || std::find(end, end + run.ends, next) != end + run.ends;
        good = kept < count && next == text.draft[kept];
        kept += good;
      } while (good && !ended);
      run.drafted[i * run.passes + step] = count, run.kept[i * run.passes + step] = kept;
      if (count && run.drafter) run.reach[text.place] += std::min(kept, count - 1);
      if (!ended) going.push_back(i);
    }
    live = going;
  }
};

// As the engine has it, step by step: each pass has a row for the last token of a text and for each one drafted below it. What
// is drawn from a row is the text's next token, up to the first that is not the drafted one; -1, its last, where none can be
extern "C" void paceline_run(const Model* m, const Pass* p, Run* run) { Runner{*m, *p, *run}.go(); }
