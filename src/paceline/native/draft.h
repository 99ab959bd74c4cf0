// Whole drafts in one call. Included by decoder.cpp, behind `forward`.
#pragma once

#include "draw.h"

// A chain of drafts for each request: the pass `p`, which wants one row of each segment, then up to `steps` - 1 passes of
// one row each. keys, tokens [requests][steps]; temperature 0: greedy. A chain ends when the chance that all of it is
// kept falls below `worth`; a greedy token's chance is its probability, another's is `share`. `tokens` beyond its end: -1.
extern "C" void paceline_draft(const Model* m, const Pass* p, i64 steps, const i64* most, const double* temperature,
                               const i64* keys, double worth, double share, i64* tokens) {
  const i64 n = p->segments, vocab = m->vocab;
  std::vector<i64> live(n), token(n), position(n), slot(n), word(n, 0), want(n), table(n * p->width);
  std::vector<double> chance(n, 1.);
  std::vector<Segment> segment(n);
  std::vector<float> hidden(n * m->hidden);
  for (i64 i = 0; i < n; i++) live[i] = want[i] = i;
  std::fill(tokens, tokens + n * steps, -1);
  Pass pass = *p;
  for (i64 step = 0; step < steps && !live.empty(); step++) {
    forward(*m, pass);
    const i64 count = live.size();
#pragma omp parallel for schedule(static) num_threads(std::min(m->threads, count))
    for (i64 r = 0; r < count; r++) {
      static thread_local std::vector<float> bounds;
      const i64 i = live[r];
      const float* z = p->logits + r * vocab;
      if (temperature[i] > 0) {
        tokens[i * steps + step] = race(z, vocab, temperature[i], keys[i * steps + step], bounds);
        chance[i] *= share;
        continue;
      }
      float top;
      tokens[i * steps + step] = largest(z, vocab, top);
      __m512 sum = _mm512_setzero_ps();
      each(vocab, [&](i64 c, __mmask16 k) {
        sum = _mm512_mask_add_ps(sum, k, sum, exponential(_mm512_sub_ps(_mm512_maskz_loadu_ps(k, z + c), set(top))));
      });
      chance[i] /= _mm512_reduce_add_ps(sum);
    }
    i64 kept = 0;
    for (i64 r = 0; r < count; r++) {
      const i64 i = live[r], drawn = tokens[i * steps + step];
      if (drawn < 0 || chance[i] < worth || step + 1 >= most[i]) continue;
      const Segment& first = p->segment[i];
      const i64 at = first.base + first.given + step;
      live[kept] = i, token[kept] = drawn, position[kept] = at, segment[kept] = {kept, 1, 0, at};
      slot[kept] = p->table[i * p->width + at / m->block_size] * m->block_size + at % m->block_size;
      memcpy(&table[kept * p->width], p->table + i * p->width, p->width * 8);
      kept++;
    }
    live.resize(kept);
    pass.rows = pass.segments = pass.wanted = kept;
    pass.token = token.data(), pass.position = position.data(), pass.slot = slot.data(), pass.word = word.data();
    pass.want = want.data(), pass.table = table.data(), pass.segment = segment.data(), pass.hidden = hidden.data();
  }
}

// -- trees --------------------------------------------------------------------------------------------------------------

const i64 MOST = 64;  // nodes of a tree

struct Choice {  // a node that may be drafted: the chance that it is kept, and below which node (-1: the root)
  float value;
  i64 parent, token;
};

// The `k` most probable tokens of a law with logits x / temperature, as choices below `parent`, whose own chance is `value`
static void best(const float* x, i64 n, float temperature, i64 k, float value, i64 parent, std::vector<Choice>& out) {
  float top;
  if (largest(x, n, top) < 0) return;
  const __m512 inverse = set(1 / temperature), most = set(top);
  __m512 sum = _mm512_setzero_ps();
  std::vector<Choice> found;
  float least = -INFINITY;
  for (i64 i = 0; i < n; i += 16) {
    const __mmask16 here = below(n - i);
    const __m512 z = _mm512_maskz_loadu_ps(here, x + i);
    sum = _mm512_mask_add_ps(sum, here, sum, exponential(_mm512_mul_ps(_mm512_sub_ps(z, most), inverse)));
    for (uint32_t left = _mm512_mask_cmp_ps_mask(here, z, set(least), _CMP_GT_OQ); left; left &= left - 1) {
      const i64 token = i + __builtin_ctz(left);
      if ((i64)found.size() == k) {
        if (x[token] <= found.back().value) continue;
        found.pop_back();
      }
      auto at = found.end();  // behind its equals: the lowest token first
      while (at != found.begin() && (at - 1)->value < x[token]) --at;
      found.insert(at, {x[token], parent, token});
      if ((i64)found.size() == k) least = found.back().value;
    }
  }
  const float share = value / _mm512_reduce_add_ps(sum);
  for (Choice it : found) out.push_back({share * std::exp((it.value - top) / temperature), parent, it.token});
}

struct Tree {
  std::vector<i64> token, parent, depth;
  std::vector<uint64_t> word;
  std::vector<float> value;
  std::vector<Choice> pool;
  bool ended = false;

  // Moves the best choice of the pool, at ties the first, to the tree if it is worth `least`
  bool take(double least) {
    auto it = pool.begin();
    for (auto other = it; other != pool.end(); ++other)
      if (other->value > it->value) it = other;
    if (it == pool.end() || it->value < least) return false;
    const uint64_t above = it->parent < 0 ? 0 : word[it->parent];
    word.push_back(above | 1ull << token.size());
    depth.push_back(it->parent < 0 ? 1 : depth[it->parent] + 1);
    token.push_back(it->token), parent.push_back(it->parent), value.push_back(it->value);
    pool.erase(it);
    return true;
  }
};

// A tree of drafts for each request: after the pass `p`, which wants one row of each segment, up to `passes` passes, each
// over the tree so far and for the laws of its `beam` likeliest new nodes; at last the likeliest leaves. draft/topk.py
// tells what `least` and `worth` are. tokens, parents [requests][64]; beyond the end of a tree: -1. computed [requests]
extern "C" void paceline_tree(const Model* m, const Pass* p, const i64* nodes, const double* temperature, i64 beam,
                              i64 children, i64 passes, double least, double worth, i64* tokens, i64* parents,
                              i64* computed) {
  const i64 n = p->segments, vocab = m->vocab;
  std::vector<Tree> trees(n);
  std::vector<i64> token, position, slot, word, want, table, whose, which;  // whose, which: of each wanted row
  std::vector<Segment> segment;
  std::vector<float> hidden, logits;
  for (i64 i = 0; i < n; i++) whose.push_back(i), which.push_back(-1);
  std::fill(tokens, tokens + n * MOST, -1), std::fill(parents, parents + n * MOST, -1);
  auto known = [&](i64 i) { return p->segment[i].base + p->segment[i].given; };
  Pass pass = *p;
  for (i64 step = 0;; step++) {
    forward(*m, pass);
    for (size_t r = 0; r < whose.size(); r++) {
      Tree& tree = trees[whose[r]];
      const float value = which[r] < 0 ? 1 : tree.value[which[r]];
      best(pass.logits + r * vocab, vocab, (float)temperature[whose[r]], children, value, which[r], tree.pool);
    }
    for (auto* v : {&token, &position, &slot, &word, &want, &table, &whose, &which}) v->clear();
    segment.clear();
    for (i64 i = 0; i < n && step < passes; i++) {
      Tree& tree = trees[i];
      if (tree.ended) continue;
      const i64 done = tree.token.size();
      float gain = 0;
      for (i64 b = 0; b < beam && (i64)tree.token.size() < nodes[i] && tree.take(least); b++) gain += tree.value.back();
      tree.ended = gain < worth || (i64)tree.token.size() >= nodes[i];
      if (tree.ended) continue;
      const i64 start = token.size(), count = tree.token.size();
      for (i64 j = 0; j < count; j++) {
        const i64 at = known(i) + j;
        token.push_back(tree.token[j]), position.push_back(known(i) - 1 + tree.depth[j]), word.push_back(tree.word[j]);
        slot.push_back(p->table[i * p->width + at / m->block_size] * m->block_size + at % m->block_size);
        if (j >= done) want.push_back(start + j), whose.push_back(i), which.push_back(j);
      }
      segment.push_back({start, 0, count, known(i)});
      table.insert(table.end(), p->table + i * p->width, p->table + (i + 1) * p->width);
      computed[i] = count;
    }
    if (whose.empty()) break;
    room(hidden, (i64)token.size() * m->hidden), room(logits, (i64)want.size() * vocab);
    pass.rows = token.size(), pass.segments = segment.size(), pass.wanted = want.size(), pass.embed = 1;
    pass.token = token.data(), pass.position = position.data(), pass.slot = slot.data(), pass.word = word.data();
    pass.want = want.data(), pass.table = table.data(), pass.segment = segment.data();
    pass.hidden = hidden.data(), pass.logits = logits.data();
  }
  for (i64 i = 0; i < n; i++) {
    Tree& tree = trees[i];
    while ((i64)tree.token.size() < nodes[i] && tree.take(least)) {}
    std::copy(tree.token.begin(), tree.token.end(), tokens + i * MOST);
    std::copy(tree.parent.begin(), tree.parent.end(), parents + i * MOST);
  }
}
