// A draft model's chains within a run; draft/model.py is the slow twin.
#pragma once

#include "proposer.h"

extern "C" {
struct Chains {
  const Model* model;
  const Pass* behind;      // what it lacks of the texts, a segment each
  const i64* nodes;        // [texts]
  const double* least;     // [texts]: chance that all of a draft is kept
  i64* reach;              // [texts]: rows that the model has of each
  double share, sharp;     // those of `draft`
};

void paceline_chains_propose(Chains* s, i64 turns, const Turn* turn, Draft* drafts) {
  const Pass& behind = *s->behind;
  Laid lacking{s->model->block_size, behind.width, nullptr};
  std::vector<Chain> chains;
  std::vector<i64> whose;
  for (i64 t = 0; t < turns; t++) {
    const Turn& it = turn[t];
    const i64 first = s->reach[it.place], last = it.known() - 1, nodes = std::min(s->nodes[it.place], it.room);
    if (nodes <= 0) continue;
    lacking.text(first, behind.table + it.place * behind.width, behind.segment[it.place].shift);
    for (i64 j = first; j <= last; j++) {
      const Segment& segment = behind.segment[it.place];
      const i64 token = j > it.base ? it.tokens[j - it.base - 1] : behind.token[segment.start + j - segment.base];
      lacking.row(token, j, j, 0, j == last);
    }
    chains.push_back({nodes, it.temperature, s->least[it.place], it.keys, drafts[t].token});
    whose.push_back(t);
    s->reach[it.place] = last + 1;
  }
  if (!chains.empty()) draft(*s->model, lacking.pass(*s->model), chains, s->share, s->sharp);
  for (size_t c = 0; c < chains.size(); c++) {
    drafts[whose[c]].count = chains[c].count;
    for (i64 j = 0; j < chains[c].count; j++) drafts[whose[c]].parent[j] = j - 1;
  }
}

void paceline_chains_kept(Chains* s, i64 turns, const Turn* turn, const Draft* draft, const Kept* kept) {
  for (i64 t = 0; t < turns; t++)
    if (draft[t].count) s->reach[turn[t].place] += std::min(kept[t].count, draft[t].count - 1);
}

void paceline_chains_done(Chains*) {}
}
