// Mixers that read a text through a state: short convolutions, Mamba-2, the gated delta rule. Their slow twin is
// model/recurrent.py with model/scan.py.
//
// Each row goes on from the row before it on its own path, and adds up in one order: its bits depend on its path alone, not on
// how the text is cut into passes, on the tree around it, or on whether it is computed again. A head's matrix S [P][N] has rows
// that do not depend on one another: a thread takes some of them, which stay in its first cache, through all rows of a text.
// Of a tree it goes down each path, and leaves a copy of S where paths part.
#pragma once

#include "mixture.h"

struct Visit {  // a candidate: S of its parent lies in place `from`, and S of its own will in `to`
  i64 node, from, to;
};

struct Walk {  // down the trees of a pass
  std::vector<Visit> visits;
  std::vector<i64> begins;  // of each text; and the end
  i64 places = 1;           // for copies of S

  explicit Walk(const Scan* scan) {
    for (i64 t = 0; scan && t < scan->texts; t++) {
      begins.push_back(visits.size());
      const ScanText& text = scan->text[t];
      std::vector<i64> next(text.nodes, -1), first(text.nodes + 1, -1);  // siblings and first children, by 1 + parent
      for (i64 j = text.nodes - 1; j >= 0; j--) {
        i64& head = first[1 + scan->parent[text.node + j]];
        next[j] = head, head = j;
      }
      std::vector<std::pair<i64, i64>> open;  // nodes, and the place of their parent's S
      if (first[0] >= 0) open.push_back({first[0], 0});
      while (!open.empty()) {
        const auto [node, from] = open.back();
        open.pop_back();
        const i64 to = next[node] >= 0 ? from + 1 : from;  // the last of siblings writes over their parent's
        visits.push_back({node, from, to});
        places = std::max(places, to + 1);
        if (next[node] >= 0) open.push_back({next[node], from});
        if (first[1 + node] >= 0) open.push_back({first[1 + node], to});
      }
    }
    begins.push_back(visits.size());
  }
};

struct Recurrences : Mixtures {
  using Mixtures::Mixtures;
  static const i64 HEAD_ROWS = 32;  // rows of S that a thread takes at a time

  // -- where things lie --------------------------------------------------------------------------------------------------

  static float* tail(const Recurrence& l, i64 place) { return l.tails[place]; }
  static float* matrix(const Recurrence& l, i64 place) { return l.matrices[place]; }
  // Row i of a text among those of the pass; below 0: it is replayed
  static i64 own(const ScanText& text, i64 i) { return i < text.known ? -1 : text.row + i - text.known; }
  // The row before row i of a text on its path; -1: the state that the text begins with
  i64 above(const ScanText& text, i64 i) const {
    const i64 chain = text.known + text.given;
    if (i < chain) return i - 1;
    const i64 parent = p.scan->parent[text.node + i - chain];
    return chain + parent;  // -1: the last of the chain
  }
  // What row i of a text brings: of a replayed one its record
  const float* brought(const Recurrence& l, const ScanText& text, i64 i) const {
    if (i < text.known) return l.records + p.scan->replayed[text.replay + i] * l.record;
    return l.kind == CONVOLVED ? b.brought + own(text, i) * l.record : b.wide + own(text, i) * (l.width + l.record) + l.width;
  }

  // -- row by row --------------------------------------------------------------------------------------------------------

  // The inputs of the convolution of row i of a text, the oldest first
  void window(const Recurrence& l, const ScanText& text, i64 i, const float** from) const {
    i64 n = l.length - 1;
    for (i64 r = i; n >= 0 && r >= 0; r = above(text, r)) from[n--] = brought(l, text, r);
    for (i64 k = l.length - 2; n >= 0; n--, k--) from[n] = text.begin < 0 ? nullptr : tail(l, text.begin) + k * l.channels;
  }

  float* convolved(const Recurrence& l, const ScanText& text, i64 i) const { return b.convolved + (text.first + i) * l.channels; }
  float* factors(const Recurrence& l, const ScanText& text, i64 i) const { return b.factors + (text.first + i) * 2 * l.heads; }

  static float softplus(float x) { return x > 20 ? x : std::log1p(std::exp(x)); }

  void unit(float* x, i64 n, float scale) const {  // to this length, but for a floor
    const __m512 sum = strands(n, set(0), [&](__m512 sum, i64 i, __mmask16 k) {
      const __m512 v = _mm512_maskz_loadu_ps(k, x + i);
      return _mm512_fmadd_ps(v, v, sum);
    }, [](__m512 a, __m512 b) { return _mm512_add_ps(a, b); });
    const __m512 by = set(scale / std::sqrt(_mm512_reduce_add_ps(sum) + 1e-6f));
    each(n, [&](i64 i, __mmask16 k) { put(x + i, _mm512_mul_ps(_mm512_maskz_loadu_ps(k, x + i), by), k); });
  }

  void convolve(const Recurrence& l, const ScanText& text, i64 i) {
    const float* from[MOST_LENGTH];
    window(l, text, i, from);
    float* y = convolved(l, text, i);
    each(l.channels, [&](i64 c, __mmask16 k) {
      __m512 sum = l.conv_bias ? _mm512_maskz_loadu_ps(k, l.conv_bias + c) : set(0);
      for (i64 j = 0; j < l.length; j++)
        if (from[j]) sum = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(k, from[j] + c), _mm512_maskz_loadu_ps(k, l.kernel + j * l.channels + c), sum);
      put(y + c, l.kind == CONVOLVED ? sum : activated(sum, SILU), k);
    });
    if (l.kind == CONVOLVED) return;
    const float* rest = brought(l, text, i) + l.channels;
    float *decay = factors(l, text, i), *by = decay + l.heads;
    for (i64 h = 0; h < l.heads; h++) {
      const float time = softplus(rest[l.kind == DELTA ? l.heads + h : h] + l.offset[h]);
      by[h] = l.kind == DELTA ? 1 / (1 + std::exp(-rest[h])) : std::min(std::max(time, (float)l.low), (float)l.high);
      decay[h] = std::exp(l.rate[h] * (l.kind == DELTA ? time : by[h]));
    }
    if (l.kind != DELTA) return;
    for (i64 g = 0; g < l.groups; g++) {
      unit(y + g * l.key_dim, l.key_dim, 1 / std::sqrt((float)l.key_dim));
      unit(y + (l.groups + g) * l.key_dim, l.key_dim, 1);
    }
  }

  // All rows' convolutions, and their records
  void convolve(const Recurrence& l) {
    const Scan& scan = *p.scan;
    i64 first, last, t = 0;
    share(scan.rows, first, last);
    for (i64 n = first; n < last; n++) {
      while (t + 1 < scan.texts && scan.text[t + 1].first <= n) t++;
      convolve(l, scan.text[t], n - scan.text[t].first);
    }
    share(scan.kept, first, last);
    for (i64 n = first; n < last; n++) {
      const i64 row = scan.keep[n];
      const float* from = l.kind == CONVOLVED ? b.brought + row * l.record : b.wide + row * (l.width + l.record) + l.width;
      memcpy(l.records + scan.record[n] * l.record, from, l.record * 4);
    }
  }

  // The last inputs of convolutions, which anchors keep. When all convolutions are done: one may lie where its text began
  void leave_tails(const Recurrence& l) const {
    const Scan& scan = *p.scan;
    for (i64 t = me; t < scan.texts; t += all) {
      const ScanText& text = scan.text[t];
      for (i64 a = 0; a < text.anchors; a++) {
        const float* from[MOST_LENGTH];
        window(l, text, scan.anchor[text.anchor + a], from);
        float* to = tail(l, scan.place[text.anchor + a]);
        for (i64 j = 1; j < l.length; j++, to += l.channels) {
          if (from[j]) memmove(to, from[j], l.channels * 4);
          else memset(to, 0, l.channels * 4);
        }
      }
    }
  }

  // -- the scan ----------------------------------------------------------------------------------------------------------

  struct Step {  // what a row brings to a head
    const float *key, *query, *value;
    float decay, by;
  };

  // HOW rows of S, n numbers each, by one step; what they give goes to y, if anywhere
  template <i64 HOW, bool RULE>
  static void step(float* s, i64 n, const Step& it, const float* value, float* y) {
    float update[HOW];
    if (RULE) {
      __m512 known[HOW] = {};
      each(n, [&](i64 i, __mmask16 k) {
        const __m512 key = _mm512_maskz_loadu_ps(k, it.key + i);
        for (i64 r = 0; r < HOW; r++) known[r] = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(k, s + r * n + i), key, known[r]);
      });
      for (i64 r = 0; r < HOW; r++) update[r] = it.by * (value[r] - it.decay * _mm512_reduce_add_ps(known[r]));
    } else {
      for (i64 r = 0; r < HOW; r++) update[r] = it.by * value[r];
    }
    __m512 sum[HOW] = {};
    const __m512 decay = set(it.decay);
    each(n, [&](i64 i, __mmask16 k) {
      const __m512 key = _mm512_maskz_loadu_ps(k, it.key + i), query = _mm512_maskz_loadu_ps(k, it.query + i);
      for (i64 r = 0; r < HOW; r++) {
        const __m512 now = _mm512_fmadd_ps(set(update[r]), key, _mm512_mul_ps(decay, _mm512_maskz_loadu_ps(k, s + r * n + i)));
        put(s + r * n + i, now, k);
        sum[r] = _mm512_fmadd_ps(now, query, sum[r]);
      }
    });
    if (y)
      for (i64 r = 0; r < HOW; r++) y[r] = _mm512_reduce_add_ps(sum[r]);
  }

  template <bool RULE>
  void scan(const Recurrence& l, const ScanText& text, i64 t, i64 head, i64 low, i64 high) {
    const i64 n = l.key_dim, count = high - low, size = count * n, each_group = l.heads / l.groups;
    const i64 group = head / each_group, chain = text.known + text.given;
    const i64 mine = l.tiled ? head % each_group * l.groups + group : head;  // its number among values, gates and rates
    const i64 where = (head * l.head_dim + low) * n;                         // in a matrix of all heads
    float* states = room<float>(s.states, b.walk->places * size);
    if (text.begin < 0) memset(states, 0, size * 4);
    else memcpy(states, matrix(l, text.begin) + where, size * 4);
    i64 anchor = 0;
    auto visit = [&](i64 i, float* at) {
      const float *x = convolved(l, text, i), *by = factors(l, text, i);
      const i64 keys = RULE ? l.groups * n : l.heads * l.head_dim, row = own(text, i);
      const float *values = x + (RULE ? 2 * l.groups * n : 0) + mine * l.head_dim, *first = x + (RULE ? 0 : keys) + group * n;
      const Step it = {RULE ? first + keys : first, RULE ? first : first + l.groups * n, values, by[mine], by[l.heads + mine]};
      float* y = row < 0 ? nullptr : b.scanned + row * l.width + mine * l.head_dim;
      i64 r = low;
      for (; r + 4 <= high; r += 4) step<4, RULE>(at + (r - low) * n, n, it, values + r, y ? y + r : nullptr);
      for (; r < high; r++) step<1, RULE>(at + (r - low) * n, n, it, values + r, y ? y + r : nullptr);
      if (y && l.through)
        for (r = low; r < high; r++) y[r] = std::fma(l.through[mine], values[r], y[r]);
    };
    auto leave = [&](i64 place, const float* at) { memcpy(matrix(l, place) + where, at, size * 4); };
    const i64 *anchors = p.scan->anchor + text.anchor, *places = p.scan->place + text.anchor;
    for (i64 i = 0; i < chain; i++) {
      visit(i, states);
      if (anchor < text.anchors && anchors[anchor] == i) leave(places[anchor++], states);
    }
    for (i64 v = b.walk->begins[t]; v < b.walk->begins[t + 1]; v++) {
      const Visit& it = b.walk->visits[v];
      float* at = states + it.to * size;
      if (it.from != it.to) memcpy(at, states + it.from * size, size * 4);
      visit(chain + it.node, at);
      for (i64 a = anchor; a < text.anchors; a++)
        if (anchors[a] == chain + it.node) leave(places[a], at);
    }
  }

  void scan(const Recurrence& l) {
    const i64 parts = up(l.head_dim, HEAD_ROWS) / HEAD_ROWS, each_text = l.heads * parts;
    i64 first, last;
    share(p.scan->texts * each_text, first, last);
    for (i64 n = first; n < last; n++) {
      const i64 t = n / each_text, head = n % each_text / parts, low = n % parts * HEAD_ROWS;
      const i64 high = std::min(low + HEAD_ROWS, l.head_dim);
      if (l.kind == DELTA) scan<true>(l, p.scan->text[t], t, head, low, high);
      else scan<false>(l, p.scan->text[t], t, head, low, high);
    }
  }

  // -- what comes out ----------------------------------------------------------------------------------------------------

  void gate(const Recurrence& l, i64 row) const {  // gates and norm of what the scan gave of a row, in place
    float* y = b.scanned + row * l.width;
    const float* gates = b.wide + row * (l.width + l.record);
    auto gated = [&] {
      each(l.width, [&](i64 i, __mmask16 k) {
        put(y + i, _mm512_mul_ps(_mm512_maskz_loadu_ps(k, y + i), activated(_mm512_maskz_loadu_ps(k, gates + i), SILU)), k);
      });
    };
    if (l.gate_first || !l.norm) gated();
    if (!l.norm) return;
    const i64 n = l.width / l.norm_groups;
    for (i64 g = 0; g < l.norm_groups; g++) {
      float* x = y + g * n;
      const float* weight = l.norm + g % l.norm_rows * n;
      const __m512 sum = strands(n, set(0), [&](__m512 sum, i64 i, __mmask16 k) {
        const __m512 v = _mm512_maskz_loadu_ps(k, x + i);
        return _mm512_fmadd_ps(v, v, sum);
      }, [](__m512 a, __m512 b) { return _mm512_add_ps(a, b); });
      const __m512 by = set(1 / std::sqrt(_mm512_reduce_add_ps(sum) / n + (float)m.eps));
      each(n, [&](i64 i, __mmask16 k) {
        put(x + i, _mm512_mul_ps(_mm512_mul_ps(_mm512_maskz_loadu_ps(k, x + i), by), _mm512_maskz_loadu_ps(k, weight + i)), k);
      });
    }
    if (!l.gate_first) gated();
  }

  // Each row's product of two of the three parts that a short convolution's projection gives, side by side
  void multiply(float* y, i64 to, const float* a, const float* c, i64 from, i64 first, i64 last) const {
    for (i64 r = first; r < last; r++)
      each(m.hidden, [&](i64 i, __mmask16 k) {
        put(y + r * to + i, _mm512_mul_ps(_mm512_maskz_loadu_ps(k, a + r * from + i), _mm512_maskz_loadu_ps(k, c + r * to + i)), k);
      });
  }

  // A layer's rows, of which the projections lie in `wide`: what its last product reads, in `scanned`
  void recur(const Recurrence& l) {
    i64 first, last;
    share(p.rows, first, last);
    const i64 n = m.hidden;
    if (l.kind == CONVOLVED) {
      for (i64 r = first; r < last; r++) memcpy(b.brought + r * n, b.wide + r * 3 * n + 2 * n, n * 4);
      multiply(b.brought, n, b.wide, b.brought, 3 * n, first, last);
      done(ATTENTION);
    }
    convolve(l);
    done(ATTENTION);
    leave_tails(l);
    if (l.kind == CONVOLVED) {
      i64 t = 0;
      for (i64 r = first; r < last; r++) {
        while (t + 1 < p.scan->texts && p.scan->text[t + 1].row <= r) t++;
        const ScanText& text = p.scan->text[t];
        const float* mixed = convolved(l, text, text.known + r - text.row);
        memcpy(b.scanned + r * n, mixed, n * 4);
      }
      multiply(b.scanned, n, b.wide + n, b.scanned, 3 * n, first, last);
      return;
    }
    scan(l);
    done(ATTENTION);
    for (i64 r = first; r < last; r++) gate(l, r);
  }
};
