// Whole drafts in one call. Included by decoder.cpp, behind `forward`.
#pragma once

#include "draw.h"

// A chain of drafts for each request: the pass `p`, which wants one row of each segment, then up to `steps` - 1 passes of
// one row each. keys, tokens [requests][steps]; temperature 0: greedy. A chain ends when the chance that all of it is
// kept falls below its `worth`; a greedy token's chance is its probability at temperature `sharp`, another's is `share`.
// At `worth` 0 it is no draft: tokens are drawn from the law as float32 has it, as the engine does. It ends, too,
// behind a token of its `end` [requests][ends]. tokens: -1 where none can be drawn, -2 beyond the end.
extern "C" void paceline_draft(const Model* m, const Pass* p, i64 steps, const i64* most, const double* temperature,
                               const i64* keys, const double* worth, double share, double sharp, const i64* end, i64 ends,
                               i64* tokens) {
  const i64 n = p->segments, vocab = m->vocab;
  std::vector<i64> live(n), token(n), position(n), slot(n), word(n, 0), want(n), table(n * p->width);
  std::vector<double> chance(n, 1.);
  std::vector<Segment> segment(n);
  for (i64 i = 0; i < n; i++) live[i] = want[i] = i;
  std::fill(tokens, tokens + n * steps, -2);
  Pass pass = *p;
  for (i64 step = 0; step < steps && !live.empty(); step++) {
    forward(*m, pass);
    const i64 count = live.size();
    parallel(m->threads, count, [&](i64 r) {
      static thread_local Room bounds, law;
      const i64 i = live[r];
      const float* z = p->logits + r * vocab;
      if (temperature[i] > 0 && !worth[i]) {
        log_law(z, vocab, temperature[i], room<float>(law, vocab));
        tokens[i * steps + step] = race((float*)law.data(), vocab, 1, keys[i * steps + step], bounds);
        return;
      }
      if (temperature[i] > 0) {
        tokens[i * steps + step] = race(z, vocab, temperature[i], keys[i * steps + step], bounds);
        chance[i] *= share;
        return;
      }
      float top;
      tokens[i * steps + step] = largest(z, vocab, top);
      if (!worth[i]) return;
      __m512 sum = _mm512_setzero_ps();
      each(vocab, [&](i64 c, __mmask16 k) {
        const __m512 x = _mm512_mul_ps(_mm512_sub_ps(_mm512_maskz_loadu_ps(k, z + c), set(top)), set((float)(1 / sharp)));
        sum = _mm512_mask_add_ps(sum, k, sum, exponential(x));
      });
      chance[i] /= _mm512_reduce_add_ps(sum);
    });
    i64 kept = 0;
    for (i64 r = 0; r < count; r++) {
      const i64 i = live[r], drawn = tokens[i * steps + step];
      if (drawn < 0 || chance[i] < worth[i] || step + 1 >= most[i]) continue;
      if (std::find(end + i * ends, end + (i + 1) * ends, drawn) != end + (i + 1) * ends) continue;
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
    pass.want = want.data(), pass.table = table.data(), pass.segment = segment.data();
  }
}

// -- trees --------------------------------------------------------------------------------------------------------------

const i64 MOST = 64;  // nodes of a tree

struct Place {  // a node whose law is known
  float chance;
  std::vector<float> share;  // of its likeliest continuations, falling
  std::vector<i64> token, below;  // below: the place of each, -1 where its law is not known
};

struct Sprout {
  i64 token, parent, depth, place, rank;  // place, rank: which continuation of which place it is
  uint64_t word;
  float chance;
  bool operator==(const Sprout& o) const { return token == o.token && parent == o.parent; }
};

struct Tree {
  std::vector<Place> places;
  std::vector<Sprout> nodes, laid;  // laid: those of the last pass
  bool ended = false;

  // draft/dyspec.py: most_probable
  void regrow(i64 most, double least) {
    struct Item {
      float value;
      i64 when, place, rank, parent;
      bool operator<(const Item& o) const { return value < o.value || (value == o.value && when > o.when); }
    };
    std::vector<Item> heap;
    auto offer = [&](float above, i64 place, i64 rank, i64 parent) {
      if (place < 0 || rank >= (i64)places[place].share.size()) return;
      heap.push_back({above * places[place].share[rank], (i64)nodes.size(), place, rank, parent});
      std::push_heap(heap.begin(), heap.end());
    };
    nodes.clear();
    offer(1, 0, 0, -1);
    while (!heap.empty() && (i64)nodes.size() < most && heap[0].value >= least) {
      const Item it = heap[0];
      std::pop_heap(heap.begin(), heap.end());
      heap.pop_back();
      const Place& place = places[it.place];
      const i64 at = nodes.size(), depth = it.parent < 0 ? 1 : nodes[it.parent].depth + 1;
      const uint64_t above = it.parent < 0 ? 0 : nodes[it.parent].word;
      nodes.push_back({place.token[it.rank], it.parent, depth, it.place, it.rank, above | 1ull << at, it.value});
      offer(place.chance, it.place, it.rank + 1, it.parent);
      offer(it.value, place.below[it.rank], 0, at);
    }
  }
};

// The law with logits x / temperature: its `k` likeliest tokens
static Place law(const float* x, i64 n, float temperature, i64 k, float chance) {
  Place place{chance, {}, {}, {}};
  float top, least = -INFINITY;
  if (largest(x, n, top) < 0) return place;
  const __m512 inverse = set(1 / temperature), most = set(top);
  __m512 sum = _mm512_setzero_ps();
  for (i64 i = 0; i < n; i += 16) {
    const __mmask16 here = below(n - i);
    const __m512 z = _mm512_maskz_loadu_ps(here, x + i);
    sum = _mm512_mask_add_ps(sum, here, sum, exponential(_mm512_mul_ps(_mm512_sub_ps(z, most), inverse)));
    for (uint32_t left = _mm512_mask_cmp_ps_mask(here, z, set(least), _CMP_GT_OQ); left; left &= left - 1) {
      const i64 token = i + __builtin_ctz(left);
      i64 at = place.token.size();  // behind its equals: the lowest token first
      while (at > 0 && x[place.token[at - 1]] < x[token]) at--;
      if (at == k) continue;
      place.token.insert(place.token.begin() + at, token);
      if ((i64)place.token.size() > k) place.token.pop_back();
      if ((i64)place.token.size() == k) least = x[place.token.back()];
    }
  }
  const float total = _mm512_reduce_add_ps(sum);
  for (i64 token : place.token) place.share.push_back(std::exp((x[token] - top) / temperature) / total);
  place.below.assign(place.token.size(), -1);
  return place;
}

// A tree of drafts for each request: after the pass `p`, which wants one row of each segment, up to `passes` passes, each
// over the tree as it is and for the laws that may change it. draft/dyspec.py is the slow twin and tells what `least`, one
// a request, and `gain` are. size [requests][nodes, depth]; tokens, parents [requests][64]; beyond the end of a tree: -1.
// computed [requests]: first rows with K/V
extern "C" void paceline_tree(const Model* m, const Pass* p, const i64* size, const double* temperature,
                              const double* least, i64 children, i64 passes, double gain, i64* tokens, i64* parents,
                              i64* computed) {
  const i64 n = p->segments, vocab = m->vocab;
  std::vector<Tree> trees(n);
  std::vector<i64> token, position, slot, word, want, table;
  std::vector<std::pair<i64, i64>> whose;  // tree and node of each wanted row
  std::vector<Segment> segment;
  Room logits;
  for (i64 i = 0; i < n; i++) whose.push_back({i, -1});
  auto known = [&](i64 i) { return p->segment[i].base + p->segment[i].given; };
  Pass pass = *p;
  for (i64 step = 0;; step++) {
    forward(*m, pass);
    for (size_t r = 0; r < whose.size(); r++) {
      Tree& tree = trees[whose[r].first];
      const i64 node = whose[r].second;
      const float chance = node < 0 ? 1 : tree.nodes[node].chance;
      if (node >= 0) tree.places[tree.nodes[node].place].below[tree.nodes[node].rank] = tree.places.size();
      tree.places.push_back(law(pass.logits + r * vocab, vocab, (float)temperature[whose[r].first], children, chance));
    }
    for (auto* v : {&token, &position, &slot, &word, &want, &table}) v->clear();
    segment.clear(), whose.clear();
    for (i64 i = 0; i < n; i++) {
      Tree& tree = trees[i];
      if (tree.ended) continue;
      const i64 nodes = size[2 * i], depth = size[2 * i + 1];
      tree.regrow(nodes, least[i]);
      const float last = (i64)tree.nodes.size() == nodes ? tree.nodes.back().chance : (float)least[i];
      const i64 start = token.size(), wanted = want.size(), count = tree.nodes.size();
      float expected = 0;
      for (i64 j = 0; j < count; j++)
        if (tree.places[tree.nodes[j].place].below[tree.nodes[j].rank] < 0 && tree.nodes[j].chance > last) {
          expected += tree.nodes[j].chance;
          if (tree.nodes[j].depth < depth) want.push_back(start + j), whose.push_back({i, j});
        }
      tree.ended = step == passes || (i64)want.size() == wanted || expected < gain;
      if (tree.ended) {
        want.resize(wanted), whose.resize(wanted);
        continue;
      }
      for (i64 j = 0; j < count; j++) {
        const i64 at = known(i) + j;
        token.push_back(tree.nodes[j].token), word.push_back(tree.nodes[j].word);
        position.push_back(known(i) - 1 + tree.nodes[j].depth);
        slot.push_back(p->table[i * p->width + at / m->block_size] * m->block_size + at % m->block_size);
      }
      segment.push_back({start, 0, count, known(i)});
      table.insert(table.end(), p->table + i * p->width, p->table + (i + 1) * p->width);
      tree.laid = tree.nodes;
    }
    if (whose.empty()) break;
    pass.rows = token.size(), pass.segments = segment.size(), pass.wanted = want.size();
    pass.token = token.data(), pass.position = position.data(), pass.slot = slot.data(), pass.word = word.data();
    pass.want = want.data(), pass.table = table.data(), pass.segment = segment.data();
    pass.logits = room<float>(logits, (i64)want.size() * vocab);
  }
  std::fill(tokens, tokens + n * MOST, -1);
  for (i64 i = 0; i < n; i++) {
    const auto &now = trees[i].nodes, &laid = trees[i].laid;
    const size_t both = std::min(now.size(), laid.size());
    computed[i] = std::mismatch(laid.begin(), laid.begin() + both, now.begin()).first - laid.begin();
    for (size_t j = 0; j < now.size(); j++) tokens[i * MOST + j] = now[j].token, parents[i * MOST + j] = now[j].parent;
  }
}
