// Several passes in one call, each with a draft or without. Included by decoder.cpp.
#pragma once

#include "proposer.h"

extern "C" {
struct Run {  // of passes over the texts of a pass that has one row of each. Behind a token of its `end` a text has ended
  i64 passes, room, ends;
  const i64* most;            // [texts] tokens
  const Warp* warp;           // [texts]
  const i64 *keys, *end;      // [texts][room], [texts][ends]
  i64 drafts;                 // texts that are drafted for
  const i64* whose;           // [drafts]: text
  const Proposer* proposer;   // what drafts for them, or null
  i64 taps;                   // hidden states that are read
  const i64* tap;             // [taps]: layer whose input it is, -1: before the final norm, -2: behind it
  float* hidden;              // [taps][texts][room][hidden]: of the rows that each token was drawn from
  i64 *tokens, *length;       // [texts][room], [texts]
  i64* rounds;                // [texts]: rounds that were made
  i64 *offered, *kept;        // [texts][passes][MOST_NODES], [texts][passes]: nodes at each depth; tokens kept of the draft
  double seconds;             // of drafting
};
}

struct Text {
  i64 drawn = 0;   // tokens
  i64 place = -1;  // among those that are drafted for
  i64 first = 0;   // row
  i64 turn = -1;   // in this round
};

struct Runner {
  const Model& m;
  const Pass& p;
  Run& run;
  std::vector<Text> texts = std::vector<Text>(p.segments);
  std::vector<i64> live, whose, won;  // texts; text of each row; tokens
  std::vector<Turn> turns;            // of this round
  std::vector<Draft> drafts;
  std::vector<Kept> paths;
  std::vector<i64> from, to;          // slots to copy
  Laid rows{m.block_size, p.width, p.seconds};
  std::vector<std::vector<float>> tapped = std::vector<std::vector<float>>(run.taps);
  std::vector<float*> inputs = std::vector<float*>(m.layers, nullptr);

  i64 length(i64 i) const { return p.segment[i].base + 1 + texts[i].drawn; }
  i64 last(i64 i) const { return texts[i].drawn ? run.tokens[i * run.room + texts[i].drawn - 1] : p.token[p.segment[i].start]; }
  const i64* keys(i64 i) const { return run.keys + i * run.room + texts[i].drawn; }
  float* hidden(i64 tap, i64 i, i64 n) const { return run.hidden + ((tap * p.segments + i) * run.room + n) * m.hidden; }
  i64 slot(i64 i, i64 place) const {
    return p.table[i * p.width + place / m.block_size] * m.block_size + place % m.block_size;
  }

  void go() {
    for (i64 i = 0; i < p.segments; i++) live.push_back(i), run.rounds[i] = 0;
    for (i64 d = 0; d < run.drafts; d++) texts[run.whose[d]].place = d;
    for (i64 step = 0; step < run.passes && !live.empty(); step++) {
      propose();
      verify();
      settle(step);
    }
    for (i64 i = 0; i < p.segments; i++) run.length[i] = texts[i].drawn;
    if (run.proposer && run.proposer->done) run.proposer->done(run.proposer->state);
  }

  void propose() {
    turns.clear();
    for (i64 i : live) {
      Text& text = texts[i];
      text.turn = -1;
      const i64 deep = run.most[i] - text.drawn - 1;
      if (text.place < 0 || deep <= 0) continue;
      text.turn = turns.size();
      turns.push_back({text.place, text.drawn, deep, std::min(deep, MOST_NODES), p.segment[i].base, p.token[p.segment[i].start], run.warp[i],
                       run.tokens + i * run.room, keys(i), p.table + i * p.width, text.drawn ? hidden(0, i, text.drawn - 1) : nullptr,
                       p.segments * run.room * m.hidden});
    }
    drafts.resize(turns.size()), paths.resize(turns.size());
    for (Draft& draft : drafts) draft.count = 0;
    if (turns.empty()) return;
    const auto start = std::chrono::steady_clock::now();
    run.proposer->propose(run.proposer->state, turns.size(), turns.data(), drafts.data());
    run.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  void verify() {
    rows.clear(), whose.clear();
    for (i64 i : live) {
      const i64 root = length(i) - 1;
      texts[i].first = whose.size();
      whose.push_back(i);
      rows.text(root, p.table + i * p.width, p.segment[i].shift, p.segment[i].adapter);
      rows.row(last(i), root, root, 0, true);
      if (texts[i].turn < 0) continue;
      Draft& draft = drafts[texts[i].turn];
      for (i64 j = 0; j < draft.count; j++) {
        const i64 above = draft.parent[j];
        draft.word[j] = (above < 0 ? 0 : draft.word[above]) | 1ull << j;
        draft.depth[j] = above < 0 ? 1 : draft.depth[above] + 1;
        rows.row(draft.token[j], root + draft.depth[j], root + 1 + j, draft.word[j], true);
        whose.push_back(i);
      }
    }
    Pass pass = rows.pass(m);
    tap(pass);
    forward(m, pass);
    won.resize(whose.size());
    parallel(m.threads, won.size(), [&](i64 r) {
      static thread_local Room bounds, law;
      const i64 i = whose[r], node = r - texts[i].first - 1;
      const i64 depth = node < 0 ? 0 : drafts[texts[i].turn].depth[node];
      if (const Rules* rules = run.warp[i].rules) {
        auto token = [&](i64 j) { return drafts[texts[i].turn].token[j]; };
        auto parent = [&](i64 j) { return drafts[texts[i].turn].parent[j]; };
        edit(pass.logits + r * m.vocab, m.vocab, *rules, path_of(run.tokens + i * run.room, texts[i].drawn, node, token, parent));
      }
      won[r] = drawn(pass.logits + r * m.vocab, m.vocab, run.warp[i], keys(i)[depth], law, bounds);
    });
  }

  void tap(Pass& pass) {  // room for what is read of this pass
    bool layers = false;
    for (i64 t = 0; t < run.taps; t++) {
      tapped[t].resize(pass.rows * m.hidden);
      if (run.tap[t] >= 0) inputs[run.tap[t]] = tapped[t].data(), layers = true;
      else (run.tap[t] == -1 ? pass.hidden : pass.post_norm) = tapped[t].data();
    }
    if (layers) pass.inputs = inputs.data();
  }

  void settle(i64 step) {
    std::vector<i64> going;
    from.clear(), to.clear();
    for (i64 i : live) {
      Text& text = texts[i];
      static const Draft none{};
      const Draft& draft = text.turn < 0 ? none : drafts[text.turn];
      const i64 root = length(i) - 1, *end = run.end + i * run.ends;
      i64 node = -1, kept = 0, hit;
      bool ended;
      do {
        const i64 row = text.first + 1 + node, next = won[row];
        for (i64 t = 0; t < run.taps; t++)
          memcpy(hidden(t, i, text.drawn), &tapped[t][row * m.hidden], m.hidden * 4);
        run.tokens[i * run.room + text.drawn++] = next;
        ended = next < 0 || text.drawn == run.most[i] || std::find(end, end + run.ends, next) != end + run.ends;
        for (hit = 0; hit < draft.count && (draft.parent[hit] != node || draft.token[hit] != next); hit++) {}
        if (hit == draft.count) break;
        if (text.turn >= 0) paths[text.turn].node[kept] = hit;
        if (hit != kept) from.push_back(slot(i, root + 1 + hit)), to.push_back(slot(i, root + 1 + kept));
        kept++, node = hit;
      } while (!ended);
      if (text.turn >= 0) paths[text.turn].count = kept;
      const i64 round = i * run.passes + step;
      std::fill_n(run.offered + round * MOST_NODES, MOST_NODES, 0);
      for (i64 j = 0; j < draft.count; j++) run.offered[round * MOST_NODES + draft.depth[j] - 1]++;
      run.kept[round] = kept, run.rounds[i] = step + 1;
      if (!ended) going.push_back(i);
    }
    if (!from.empty()) paceline_move(&m, from.size(), from.data(), to.data());
    if (!turns.empty()) run.proposer->kept(run.proposer->state, turns.size(), turns.data(), drafts.data(), paths.data());
    live = going;
  }
};

// As the engine has it, step by step: each pass has a row for the last token of a text and for each node drafted below it.
// What is drawn from a row is the text's next token, up to the first that no node carries; -1, its last, where none can be
extern "C" void paceline_run(const Model* m, const Pass* p, Run* run) { Runner{*m, *p, *run}.go(); }
