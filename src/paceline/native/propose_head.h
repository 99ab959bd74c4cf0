// A head's deterministic trees within a run; draft/head_runs.py and draft/grow.py are the slow twin.
#pragma once

#include "proposer.h"

const i64 RANKS = 10;  // draft/head_runs.py: MAX_CHILDREN

extern "C" {
// One depth: y = straight z + SiLU(bent z), or y = z; then y += SiLU(W y) for each block; then logits. Each matrix is the `head`
// of a model that has nothing else
struct Stage {
  const Model *straight, *bent;  // or null
  i64 blocks;
  const Model* const* block;
  const Model* output;
};

struct Heads {
  const Model* target;          // whose embeddings
  const i64* tap;           // number of the run's tap that it reads
  i64 width, depth, sees;   // sees: z has the embeddings of the tokens above, too
  const Stage* stage;           // [depth]
  i64 words;
  const i64* word;              // ids of a draft vocabulary; or null
  float* first;                 // [texts][width]: hidden states before the run; with `text` those of the latest row
  const i64 *nodes, *deepest;   // [texts]
  const i64 *parent, *rank;     // of the best tree, its most valuable nodes first: rank, among its parent's continuations
  i64 *tries, *hits;            // [depth][RANKS]
  std::vector<std::vector<i64>>* ranks;  // of the nodes of the latest drafts
  const Model* text;                     // the head's layers over the text's hidden states; or null
  i64 blocks;
  const i64 *table, *shift;              // [texts][blocks], [texts]
  i64* entered;                          // [texts]: rows of the run that these layers have K/V of
};

// The layers over the text take in the rows that the latest rounds of the run have brought
static void enter(Heads* s, i64 turns, const Turn* turn) {
  const Model& m = *s->text;
  Laid rows{m.block_size, s->blocks, nullptr};
  std::vector<float> x, y;
  std::vector<i64> last, whose;
  for (i64 t = 0; t < turns; t++) {
    const Turn& it = turn[t];
    i64& n = s->entered[it.place];
    if (n == it.said) continue;
    rows.text(it.base + n, s->table + it.place * s->blocks, s->shift[it.place]);
    for (; n < it.said; n++) {
      const float* state = it.hidden + *s->tap * it.taps - (it.said - 1 - n) * s->width;
      rows.row(0, it.base + n, it.base + n, 0, false);
      x.insert(x.end(), state, state + s->width);
    }
    last.push_back(rows.token.size() - 1), whose.push_back(it.place);
  }
  if (whose.empty()) return;
  y.resize(x.size());
  Pass pass = rows.pass(m);
  pass.embed = 0, pass.hidden = x.data(), pass.post_norm = y.data();
  forward(m, pass);
  for (size_t i = 0; i < whose.size(); i++) memcpy(s->first + whose[i] * s->width, &y[last[i] * s->width], s->width * 4);
}

void paceline_heads_propose(Heads* s, i64 turns, const Turn* turn, Draft* drafts) {
  struct Place {  // whose continuations are wanted
    i64 turn, shape, node, above;  // place in the best tree and in the draft, -1: the root; its parent's row, a level before
  };
  const i64 width = s->width;
  std::vector<Place> level, next;
  std::vector<i64> token, size(turns);
  std::vector<float> z, above, embedded, y, t, logits;
  if (s->text) enter(s, turns, turn);
  if (!s->ranks) s->ranks = new std::vector<std::vector<i64>>;
  s->ranks->assign(turns, {});
  for (i64 i = 0; i < turns; i++) {
    const Turn& it = turn[i];
    size[i] = std::min(s->nodes[it.place], it.most);
    if (size[i] <= 0) continue;
    const float* hidden = it.hidden && !s->text ? it.hidden + *s->tap * it.taps : s->first + it.place * width;
    level.push_back({i, -1, -1, (i64)level.size()});
    z.insert(z.end(), hidden, hidden + width);
    token.push_back(it.last());
  }
  for (i64 depth = 0; !level.empty() && depth < s->depth; depth++) {
    const Stage& stage = s->stage[depth];
    const i64 rows = level.size(), before = width * (1 + s->sees * depth), each = before + s->sees * width;
    std::swap(z, above);
    z.resize(rows * each), embedded.resize(rows * width), t.resize(rows * width);
    if (s->sees) embed(*s->target, token, embedded.data());
    for (i64 r = 0; r < rows; r++) {
      memcpy(&z[r * each], &above[level[r].above * before], before * 4);
      if (s->sees) memcpy(&z[r * each + before], &embedded[r * width], width * 4);
    }
    auto bend = [&](const Model& by, const float* x) {  // y += SiLU(by x)
      multiply(by, x, rows, t.data());
      ::each(rows * width, [&](i64 i, __mmask16 k) {
        const __m512 sum = _mm512_maskz_loadu_ps(k, &y[i]);
        put(&y[i], _mm512_add_ps(sum, activated(_mm512_maskz_loadu_ps(k, &t[i]), SILU)), k);
      });
    };
    if (stage.straight) {
      y.resize(rows * width);
      multiply(*stage.straight, z.data(), rows, y.data());
      bend(*stage.bent, z.data());
    } else {
      y = z;
    }
    for (i64 b = 0; b < stage.blocks; b++) bend(*stage.block[b], y.data());
    const i64 words = stage.output->head.out;
    logits.resize(rows * words);
    multiply(*stage.output, y.data(), rows, logits.data());
    next.clear(), token.clear();
    for (i64 r = 0; r < rows; r++) {
      const Place& it = level[r];
      const i64 *parent = s->parent, *end = parent + size[it.turn];
      if (const Rules* rules = turn[it.turn].warp.rules) {
        auto token = [&](i64 j) { return drafts[it.turn].token[j]; };
        auto above_of = [&](i64 j) { return drafts[it.turn].parent[j]; };
        const auto& path = path_of(turn[it.turn].tokens, turn[it.turn].said, it.node, token, above_of);
        edit(&logits[r * words], words, *rules, path, s->word);
      }
      Likeliest likeliest{&logits[r * words], std::count(parent, end, it.shape)};
      ::each(words, [&](i64 i, __mmask16 k) { likeliest.offer(i, _mm512_maskz_loadu_ps(k, &logits[r * words + i]), k); });
      Draft& draft = drafts[it.turn];
      for (i64 child = it.shape + 1; child < size[it.turn]; child++) {
        if (parent[child] != it.shape || s->rank[child] >= (i64)likeliest.token.size()) continue;
        const i64 found = likeliest.token[s->rank[child]], id = s->word ? s->word[found] : found;
        (*s->ranks)[it.turn].push_back(s->rank[child]);
        draft.token[draft.count] = id, draft.parent[draft.count] = it.node;
        if (depth + 1 < s->deepest[turn[it.turn].place] && std::find(parent, end, child) != end) {
          next.push_back({it.turn, child, draft.count, r});
          token.push_back(id);
        }
        draft.count++;
      }
    }
    std::swap(level, next);
  }
}

// How often each rank at each depth was tried, and the next token
void paceline_heads_kept(Heads* s, i64 turns, const Turn*, const Draft* drafts, const Kept* kept) {
  for (i64 i = 0; i < turns; i++)
    for (i64 depth = 0, above = -1; depth <= kept[i].count; depth++) {
      const i64 child = depth < kept[i].count ? kept[i].node[depth] : -2;
      for (i64 j = 0; j < drafts[i].count; j++) {
        if (drafts[i].parent[j] != above) continue;
        const i64 at = depth * RANKS + (*s->ranks)[i][j];
        s->tries[at]++, s->hits[at] += j == child;
        if (j == child) break;
      }
      above = child;
    }
}

void paceline_heads_done(Heads* s) {
  delete s->ranks;
  s->ranks = nullptr;
}
}
