// Trees of a head that is one decoder layer with K/V of its own and reads the target's hidden states (EAGLE-1, EAGLE-3), within a
// run; draft/feature_runs.py and draft/eagle3.py are the slow twin.
#pragma once

#include "proposer.h"

extern "C" {
struct FeatureLayer {
  const Model* model;   // its layer, its norm and its output matrix
  const Model* target;  // whose embeddings
  const Model* fuse;    // its `head`. fused: the feature of a row, from its taps. Else the layer's input, from [embedding, feature]
  i64 fused, normed;    // fused: EAGLE-3. normed: the residual stream begins with the normed feature
  Norm embedding_norm, feature_norm;
  bf16* features;       // [slots][hidden]
  const i64* word;      // ids of a draft vocabulary; or null
};

struct FeatureTrees {
  const FeatureLayer* layer;
  const Pass* behind;   // what it lacks of the texts, a segment each
  const i64* tap;       // numbers of the run's taps that it reads
  i64 taps;
  const i64* nodes;     // [texts]
  const double* least;  // [texts]: chance of a node
  const double* gain;   // [texts]: what another pass has to bring
  i64* reach;           // [texts]: rows that it has of each
  i64* stored;          // [texts]: of the tokens that the run has brought, how many rows before them have their features stored
  i64 children, passes;
  double sharp;         // the temperature of a greedy text's distributions
};
}

struct FeatureWorker : Worker {
  const FeatureLayer& e;
  const float *embedded, *feature;  // [rows][hidden]

  FeatureWorker(const FeatureLayer& e, const Pass& p, Buffers& b, const float* embedded, const float* feature)
      : Worker(*e.model, p, b), e(e), embedded(embedded), feature(feature) {}

  void enter() {  // the residual stream, and in `normed` what attention reads
    const i64 n = m.hidden, groups = scaled(m.layer[0].qkv, m.layer[0].value);
    float* both = room<float>(s.row, 2 * up(n, 16));
    i64 first, last;
    share(p.rows, first, last);
    for (i64 r = first; r < last; r++) {
      const float* f = feature + r * n;
      norm(embedded + r * n, e.embedding_norm, both), norm(f, e.feature_norm, both + n);
      pack(both, 2 * n, b.normed, r, e.fused ? groups : scaled(e.fuse->head));
      if (e.fused) memcpy(b.x + r * n, e.normed ? both + n : f, n * 4);
    }
    done(NORM);
    if (e.fused) return;
    store(e.fuse->head, b.normed, p.rows, b.x, n);
    done(LINEAR);
    pack_rows(b.x, n, b.normed, groups);
    done(NORM);
  }

  void run() {
    enter();
    attended(0, m.layer[0]);
    feed(0, m.layer[0], false);
    norm_rows(b.x, m.norm, p.wanted, p.want, nullptr, scaled(m.head));
    done(NORM);
    store(m.head, b.normed, p.wanted, p.logits, m.vocab, (float)m.logit_cap, (float)m.logit_scale);
    done(HEAD);
  }
};

// A pass of rows of which each reads a feature, too
static void read(const FeatureLayer& e, const Pass& p, const std::vector<i64>& tokens, const float* feature) {
  std::vector<float> embedded(p.rows * e.model->hidden);
  embed(*e.target, tokens, embedded.data());
  Model wide = *e.model;
  wide.hidden *= 2;  // room for an embedding and a feature side by side
  Buffers b;
  plan(*e.model, p, b);
  make_room(wide, p, b);
  parallel(e.model->threads, [&] { FeatureWorker(e, p, b, embedded.data(), feature).run(); });
}

extern "C" void paceline_features(const FeatureLayer* e, const Pass* p, const float* feature) {
  read(*e, *p, std::vector<i64>(p->token, p->token + p->rows), feature);
}

struct FeatureGrowth {  // the passes of some trees: a node reads what the head put out at its parent
  const FeatureLayer& e;
  std::vector<float> feature;                   // of the rows of texts in the first pass
  std::vector<std::vector<float>> states = {};  // [trees][places][hidden]
  std::vector<float> out = {};

  void operator()(Pass p, const Pairs& whose, const Pairs& above) {
    static const i64 FIRST[2] = {0, 1};  // the first row of a text has no feature: none sees it
    const i64 width = e.model->hidden;
    std::vector<Segment> segments(p.segment, p.segment + p.segments);
    for (Segment& segment : segments) segment.first = 0, segment.hidden = 1;
    std::vector<i64> tokens(p.token, p.token + p.rows);
    if (!above.empty()) {
      feature.clear();
      for (auto [tree, place] : above) {
        const float* state = &states[tree][place * width];
        feature.insert(feature.end(), state, state + width);
      }
      if (e.word)
        for (i64& token : tokens) token = e.word[token];
    }
    out.resize(p.rows * width);
    p.segment = segments.data(), p.hides = FIRST, p.hidden = out.data();
    read(e, p, tokens, feature.data());
    for (i64 r = 0; r < p.wanted; r++) {
      const float* state = &out[p.want[r] * width];
      std::vector<float>& mine = states[whose[r].first];
      mine.insert(mine.end(), state, state + width);
    }
  }
};

// Features of the rows that the latest rounds of the run have brought
static void keep_features(FeatureTrees* s, i64 turns, const Turn* turn, const std::vector<const i64*>& table) {
  const FeatureLayer& e = *s->layer;
  const i64 width = e.model->hidden, size = e.model->block_size;
  std::vector<float> states, features;
  std::vector<i64> slots;
  for (i64 t = 0; t < turns; t++) {
    const Turn& it = turn[t];
    for (i64& n = s->stored[it.place]; n < it.said; n++) {
      const i64 at = it.base + n;
      slots.push_back(table[t][at / size] * size + at % size);
      for (i64 tap = 0; tap < s->taps; tap++) {
        const float* state = it.hidden + s->tap[tap] * it.taps - (it.said - 1 - n) * width;
        states.insert(states.end(), state, state + width);
      }
    }
  }
  if (slots.empty()) return;
  features.resize(slots.size() * width);
  if (e.fused) multiply(*e.fuse, states.data(), slots.size(), features.data());
  const float* from = e.fused ? features.data() : states.data();
  for (size_t i = 0; i < slots.size(); i++)
    for (i64 j = 0; j < width; j++) e.features[slots[i] * width + j] = Cache::rounded(from[i * width + j]);
}

extern "C" {
void paceline_features_propose(FeatureTrees* s, i64 turns, const Turn* turn, Draft* drafts) {
  const FeatureLayer& e = *s->layer;
  const Model& m = *e.model;
  Laid rows{m.block_size, s->behind->width, nullptr};
  FeatureGrowth growth{e, {}};
  std::vector<Tree> trees;
  std::vector<i64> whose;
  std::vector<const i64*> table;
  for (i64 t = 0; t < turns; t++) table.push_back(s->behind->table + turn[t].place * s->behind->width);
  keep_features(s, turns, turn, table);
  for (i64 t = 0; t < turns; t++) {
    const Turn& it = turn[t];
    const i64 nodes = std::min(s->nodes[it.place], it.most);
    if (nodes <= 0) continue;
    lacking(rows, *s->behind, it, s->reach[it.place]);
    for (i64 j = s->reach[it.place]; j < it.known(); j++) {
      const i64 at = j - 1, slot = j ? table[t][at / m.block_size] * m.block_size + at % m.block_size : 0;
      for (i64 d = 0; d < m.hidden; d++) growth.feature.push_back(j ? Cache::wide(e.features[slot * m.hidden + d]) : 0);
    }
    trees.push_back({nodes, it.room, it.sharper(s->sharp), s->least[it.place], s->gain[it.place], it.tokens, it.said, e.word});
    whose.push_back(t);
    s->reach[it.place] = it.known();
  }
  growth.states.resize(trees.size());
  if (!trees.empty())
    grow(m, rows.pass(m), trees, {s->children, s->passes},
         [&](const Pass& pass, const Pairs& of, const Pairs& above) { growth(pass, of, above); });
  for (size_t i = 0; i < trees.size(); i++) {
    Draft& draft = drafts[whose[i]];
    for (const Sprout& node : trees[i].nodes) {
      draft.token[draft.count] = e.word ? e.word[node.token] : node.token;
      draft.parent[draft.count++] = node.parent;
    }
  }
}

// The rows of nodes were computed without the target's features: they are computed again as rows of the text
void paceline_features_kept(FeatureTrees*, i64, const Turn*, const Draft*, const Kept*) {}

void paceline_features_done(FeatureTrees*) {}
}
