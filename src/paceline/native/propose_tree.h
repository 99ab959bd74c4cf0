// A draft model's greedy trees within a run; draft/dyspec.py and draft/tree.py are the slow twin.
#pragma once

#include "proposer.h"

extern "C" {
struct Trees {
  const Model* model;
  const Pass* behind;   // what it lacks of the texts, a segment each
  const i64* nodes;     // [texts]
  const double* least;  // [texts]: chance of a node
  const double* gain;   // [texts]: what another pass has to bring
  i64* reach;           // [texts]: rows that the model has of each
  i64* computed;        // [texts]: those of the latest tree, its first nodes
  i64 children, passes;
  double sharp;         // the temperature of a greedy text's distributions
};

void paceline_trees_propose(Trees* s, i64 turns, const Turn* turn, Draft* drafts) {
  Laid rows{s->model->block_size, s->behind->width, nullptr};
  std::vector<Tree> trees;
  std::vector<i64> whose;
  for (i64 t = 0; t < turns; t++) {
    const Turn& it = turn[t];
    const i64 nodes = std::min(s->nodes[it.place], it.most);
    s->computed[it.place] = 0;
    if (nodes <= 0) continue;
    lacking(rows, *s->behind, it, s->reach[it.place]);
    trees.push_back({nodes, it.room, it.sharper(s->sharp), s->least[it.place], s->gain[it.place], it.tokens, it.said});
    whose.push_back(t);
    s->reach[it.place] = it.known();
  }
  if (!trees.empty()) grow(*s->model, rows.pass(*s->model), trees, {s->children, s->passes}, [&](const Pass& pass, auto&, auto&) { forward(*s->model, pass); });
  for (size_t i = 0; i < trees.size(); i++) {
    Draft& draft = drafts[whose[i]];
    s->computed[turn[whose[i]].place] = trees[i].computed();
    for (const Sprout& node : trees[i].nodes) draft.token[draft.count] = node.token, draft.parent[draft.count++] = node.parent;
  }
}

// The rows of kept nodes are made contiguous
void paceline_trees_kept(Trees* s, i64 turns, const Turn* turn, const Draft*, const Kept* kept) {
  std::vector<i64> from, to;
  for (i64 t = 0; t < turns; t++) {
    const Turn& it = turn[t];
    auto slot = [&](i64 at) { return it.table[at / s->model->block_size] * s->model->block_size + at % s->model->block_size; };
    for (i64 n = 0; n < kept[t].count && kept[t].node[n] < s->computed[it.place]; n++) {
      if (kept[t].node[n] != n) from.push_back(slot(it.known() + kept[t].node[n])), to.push_back(slot(it.known() + n));
      s->reach[it.place]++;
    }
  }
  if (!from.empty()) paceline_move(s->model, from.size(), from.data(), to.data());
}

void paceline_trees_done(Trees*) {}
}
