// Whole drafts in one call. Included by decoder.cpp, behind `forward`.
#pragma once

#include "draw.h"

struct Laid {  // a pass in the making, its slots from block tables of `width`
  const i64 block_size, width;
  double* const seconds;
  std::vector<i64> token, position, slot, word, want, table;
  std::vector<Segment> segment;
  Room logits;

  void clear() {
    for (auto* v : {&token, &position, &slot, &word, &want, &table}) v->clear();
    segment.clear();
  }
  void text(i64 base, const i64* blocks, i64 shift, i64 adapter = 0) {  // whose rows come next
    segment.push_back({(i64)token.size(), 0, 0, base, shift, adapter, 0, 0});
    table.insert(table.end(), blocks, blocks + width);
  }
  void row(i64 id, i64 place, i64 at, uint64_t bits, bool wanted) {  // in slot `at` of its text; bits: a candidate's
    if (wanted) want.push_back(token.size());
    token.push_back(id), position.push_back(place - segment.back().shift), word.push_back(bits);
    slot.push_back(table[table.size() - width + at / block_size] * block_size + at % block_size);
    (bits ? segment.back().nodes : segment.back().given)++;
  }
  Pass pass(const Model& m) {
    Pass p = {(i64)token.size(), (i64)segment.size(), (i64)want.size(), width, 0, m.layers, 1, 1};
    p.token = token.data(), p.position = position.data(), p.slot = slot.data(), p.word = word.data();
    p.want = want.data(), p.table = table.data(), p.segment = segment.data();
    p.logits = room<float>(logits, p.wanted * m.vocab), p.seconds = seconds;
    return p;
  }
};

struct Chain {  // a draft in the making
  i64 most;  // tokens
  Warp warp;
  double worth;
  const i64* keys;  // of each token
  i64* tokens;
  const i64* said = nullptr;  // tokens behind the text that its rules are of
  i64 before = 0;             // how many
  i64 count = 0;
  double chance = 1;
};

// A chain for each segment: the pass `p`, which wants one row of each, then passes of one row each. A
// chain ends when the chance that all of it is kept falls below its `worth`; a greedy token's chance is its probability at
// temperature `sharp`, another's is `share`. And where no token can be drawn.
static void draft(const Model& m, const Pass& p, std::vector<Chain>& chains, double share, double sharp) {
  std::vector<i64> live(chains.size());
  for (size_t i = 0; i < live.size(); i++) live[i] = i;
  Laid laid{m.block_size, p.width, p.seconds};
  Pass pass = p;
  for (i64 step = 0; !live.empty(); step++) {
    forward(m, pass);
    parallel(m.threads, live.size(), [&](i64 r) {
      static thread_local Room bounds, law;
      Chain& chain = chains[live[r]];
      float* z = pass.logits + r * m.vocab;
      float top;
      if (chain.warp.rules) {
        auto mine = [&](i64 j) { return chain.tokens[j]; };
        edit(z, m.vocab, *chain.warp.rules, path_of(chain.said, chain.before, chain.count - 1, mine, [](i64 j) { return j - 1; }));
      }
      i64& token = chain.tokens[chain.count];
      if (chain.warp.temperature > 0) {
        const uint64_t key = chain.keys[chain.count];
        token = chain.warp.filters() ? drawn(z, m.vocab, chain.warp, key, law, bounds) : race(z, m.vocab, chain.warp.temperature, key, bounds);
        chain.chance *= share;
      } else if ((token = largest(z, m.vocab, top)) >= 0) {
        __m512 sum = _mm512_setzero_ps();
        each(m.vocab, [&](i64 c, __mmask16 k) {
          const __m512 x = _mm512_mul_ps(_mm512_sub_ps(_mm512_maskz_loadu_ps(k, z + c), set(top)), set((float)(1 / sharp)));
          sum = _mm512_mask_add_ps(sum, k, sum, exponential(x));
        });
        chain.chance /= _mm512_reduce_add_ps(sum);
      }
      chain.count += token >= 0;
    });
    laid.clear();
    std::vector<i64> going;
    for (i64 i : live) {
      const Chain& chain = chains[i];
      const i64 at = p.segment[i].base + p.segment[i].given + step;
      if (chain.count == step || chain.count == chain.most || chain.chance < chain.worth) continue;
      laid.text(at, p.table + i * p.width, p.segment[i].shift, p.segment[i].adapter);
      laid.row(chain.tokens[step], at, at, 0, true);
      going.push_back(i);
    }
    live = going;
    pass = laid.pass(m);
  }
}

// keys, tokens [segments][steps]; count [segments]: of tokens
extern "C" void paceline_draft(const Model* m, const Pass* p, i64 steps, const i64* most, const Warp* warp,
                               const i64* keys, const double* worth, double share, double sharp, i64* tokens, i64* count) {
  std::vector<Chain> chains;
  for (i64 i = 0; i < p->segments; i++)
    chains.push_back({most[i], warp[i], worth[i], keys + i * steps, tokens + i * steps});
  draft(*m, *p, chains, share, sharp);
  for (i64 i = 0; i < p->segments; i++) count[i] = chains[i].count;
}

// -- trees --------------------------------------------------------------------------------------------------------------

struct Place {  // a node whose distribution is known
  float chance;
  std::vector<float> share;  // of its likeliest continuations, falling
  std::vector<i64> token, below;  // below: the place of each, -1 where its distribution is not known
};

struct Sprout {
  i64 token, parent, depth, place, rank;  // place, rank: which continuation of which place it is
  uint64_t word;
  float chance;
  bool operator==(const Sprout& o) const { return token == o.token && parent == o.parent; }
};

struct Tree {
  i64 most, deepest;  // nodes; depth from which on no distribution is computed
  Warp warp;
  double least, gain;
  const i64* said = nullptr;  // tokens behind the text that its rules are of
  i64 before = 0;             // how many
  const i64* word = nullptr;  // ids of a draft vocabulary, which the nodes' tokens are places in; or null
  std::vector<Place> places = {};
  std::vector<Sprout> nodes = {}, laid = {};  // laid: those of the last pass
  bool ended = false;

  // draft/dyspec.py: most_probable
  void regrow() {
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

  i64 computed() const {  // first nodes with K/V
    return std::mismatch(laid.begin(), laid.begin() + std::min(nodes.size(), laid.size()), nodes.begin()).first - laid.begin();
  }
};

struct Limits {  // draft/dyspec.py
  i64 children, passes;
};

struct Likeliest {  // the `k` tokens of the largest x, falling; of equals the lowest first
  const float* x;
  const i64 k;
  std::vector<i64> token = {};
  float least = -INFINITY;

  void offer(i64 i, __m512 z, __mmask16 here) {  // z: x[i] to x[i + 15]
    for (uint32_t left = _mm512_mask_cmp_ps_mask(here, z, set(least), _CMP_GT_OQ); left; left &= left - 1) {
      const i64 it = i + __builtin_ctz(left);
      i64 at = token.size();
      while (at > 0 && x[token[at - 1]] < x[it]) at--;
      if (at == k) continue;
      token.insert(token.begin() + at, it);
      if ((i64)token.size() > k) token.pop_back();
      if ((i64)token.size() == k) least = x[token.back()];
    }
  }
};

// The distribution that a row of logits draws from: its `k` likeliest tokens
static Place law(const float* x, i64 n, const Warp& warp, i64 k, float chance) {
  Place place{chance, {}, {}, {}};
  const float temperature = (float)warp.temperature;
  float top;
  if (largest(x, n, top) < 0) return place;
  if (warp.filters()) {
    static thread_local Room law;
    float* log_p = room<float>(law, n);
    log_law(x, n, warp, log_p);
    Likeliest likeliest{log_p, k};
    each(n, [&](i64 i, __mmask16 here) { likeliest.offer(i, _mm512_maskz_loadu_ps(here, log_p + i), here); });
    place.token = likeliest.token;
    for (i64 token : place.token) place.share.push_back(std::exp(log_p[token]));
    place.below.assign(place.token.size(), -1);
    return place;
  }
  Likeliest likeliest{x, k};
  const __m512 inverse = set(1 / temperature), most = set(top);
  __m512 sum = _mm512_setzero_ps();
  for (i64 i = 0; i < n; i += 16) {
    const __mmask16 here = below(n - i);
    const __m512 z = _mm512_maskz_loadu_ps(here, x + i);
    sum = _mm512_mask_add_ps(sum, here, sum, exponential(_mm512_mul_ps(_mm512_sub_ps(z, most), inverse)));
    likeliest.offer(i, z, here);
  }
  place.token = likeliest.token;
  const float total = _mm512_reduce_add_ps(sum);
  for (i64 token : place.token) place.share.push_back(std::exp((x[token] - top) / temperature) / total);
  place.below.assign(place.token.size(), -1);
  return place;
}

typedef std::vector<std::pair<i64, i64>> Pairs;

// A tree for each segment: after the pass `p`, which wants one row of each, up to `limits.passes` passes, each over the tree
// as it is and for the distributions that may change it. draft/dyspec.py is the slow twin and tells what `least` and `gain` are.
// compute(pass, whose, above): a pass; whose: tree and node of each wanted row; above: tree and place of each row's parent, empty
// for the first pass
template <class Compute>
static void grow(const Model& m, const Pass& p, std::vector<Tree>& trees, const Limits& limits, Compute compute) {
  Pairs whose, above;
  Laid laid{m.block_size, p.width, p.seconds};
  for (size_t i = 0; i < trees.size(); i++) whose.push_back({i, -1});
  Pass pass = p;
  for (i64 step = 0; !whose.empty(); step++) {
    compute(pass, whose, above);
    for (size_t r = 0; r < whose.size(); r++) {
      Tree& tree = trees[whose[r].first];
      const i64 node = whose[r].second;
      const float chance = node < 0 ? 1 : tree.nodes[node].chance;
      if (node >= 0) tree.places[tree.nodes[node].place].below[tree.nodes[node].rank] = tree.places.size();
      if (tree.warp.rules) {
        auto token = [&](i64 j) { return tree.word ? tree.word[tree.nodes[j].token] : tree.nodes[j].token; };
        auto parent = [&](i64 j) { return tree.nodes[j].parent; };
        const auto& path = path_of(tree.said, tree.before, node, token, parent);
        edit(pass.logits + r * m.vocab, m.vocab, *tree.warp.rules, path, tree.word);
      }
      tree.places.push_back(law(pass.logits + r * m.vocab, m.vocab, tree.warp, limits.children, chance));
    }
    laid.clear(), whose.clear(), above.clear();
    for (size_t i = 0; i < trees.size(); i++) {
      Tree& tree = trees[i];
      if (tree.ended) continue;
      const i64 known = p.segment[i].base + p.segment[i].given;
      tree.regrow();
      const i64 count = tree.nodes.size();
      const float last = count == tree.most ? tree.nodes.back().chance : (float)tree.least;
      float expected = 0;
      std::vector<bool> wanted(count);
      for (i64 j = 0; j < count; j++)
        if (tree.places[tree.nodes[j].place].below[tree.nodes[j].rank] < 0 && tree.nodes[j].chance > last) {
          expected += tree.nodes[j].chance;
          wanted[j] = tree.nodes[j].depth < tree.deepest;
        }
      tree.ended = step == limits.passes || expected < tree.gain || std::find(wanted.begin(), wanted.end(), true) == wanted.end();
      if (tree.ended) continue;
      laid.text(known, p.table + i * p.width, p.segment[i].shift, p.segment[i].adapter);
      for (i64 j = 0; j < count; j++) {
        laid.row(tree.nodes[j].token, known - 1 + tree.nodes[j].depth, known + j, tree.nodes[j].word, wanted[j]);
        above.push_back({i, tree.nodes[j].place});
        if (wanted[j]) whose.push_back({i, j});
      }
      tree.laid = tree.nodes;
    }
    pass = laid.pass(m);
  }
}
