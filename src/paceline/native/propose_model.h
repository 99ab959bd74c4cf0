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
  Laid rows{s->model->block_size, s->behind->width, nullptr};
  std::vector<Chain> chains;
  std::vector<i64> whose;
  for (i64 t = 0; t < turns; t++) {
    const Turn& it = turn[t];
    const i64 nodes = std::min({s->nodes[it.place], it.room, it.most});
    if (nodes <= 0) continue;
    lacking(rows, *s->behind, it, s->reach[it.place]);
    chains.push_back({nodes, it.warp, s->least[it.place], it.keys, drafts[t].token, it.tokens, it.said});
    whose.push_back(t);
    s->reach[it.place] = it.known();
  }
  if (!chains.empty()) draft(*s->model, rows.pass(*s->model), chains, s->share, s->sharp);
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
