// One thread of a pass, and packed linear layers for any number of rows.
#pragma once

#include "grouped.h"

struct Activations {  // rows of bfloat16, float32, or int8; columns padded with zeros to whole steps
  uint8_t* data;
  float* scale;  // of int8 [rows], or [rows][groups] where weights lie in groups
  i64 used, stride;  // bytes: with whole steps; from row to row
  float* sums;  // [rows][groups]: of the numbers of each group, where weights lie in groups
  i64 groups;
  int16_t* wholes;  // the same, and those of each half group: RowSums
  RowSums of(i64 row) const { return RowSums{scale, sums, wholes, groups, wholes_each(groups)}.of(row); }
  Activations from(i64 row) const {  // those from `row` on
    return {data + row * stride, scale + row * std::max<i64>(1, groups), used, stride, sums + row * groups, groups,
            wholes + row * (groups ? wholes_each(groups) : 0)};
  }
};

// Of attention: queries [first, last) of a segment under one kv head, over some spans. Where other spans of theirs are
// other pieces, it is a `part`, and one of these joins `join` parts. work: about what it costs
struct Piece {
  i64 segment, head, first, last, span, spans, join, work;
  bool part;
};

struct Pieces {  // those of thread `me` of `all`: a share of the work in their order
  i64 first = 0, last = 0;
  Pieces(const std::vector<Piece>& pieces, i64 me, i64 all) {
    i64 before = 0, total = 0;
    for (const Piece& piece : pieces) total += piece.work;
    for (const Piece& piece : pieces) {
      const i64 middle = before + piece.work / 2;
      first += middle * all / total < me, last += middle * all / total <= me;
      before += piece.work;
    }
  }
};

struct Walk;  // recurrence.h

struct Buffers {
  float *x, *wide, *entry;  // entry: what the layers of a group read
  uint8_t* query;  // bfloat16 or float32
  float* parts;  // [queries][spans][top, sum, .., 16 + dims]
  i64 spans = 0;
  Activations normed, mixed, gated;
  Activations routed, inner, shared;  // of a mixture: a row for each expert that a row uses, by expert; those gated; the shared one's
  float *plain, *sum, *share;         // [rows][hidden]: what is routed, and what experts add; [rows][active]: weights
  i64* chosen;                        // [rows][active]: experts
  float *gates;                       // [rows][heads * head_dim] of what is attended to
  float *brought, *convolved, *factors, *scanned;  // of recurrences: of own rows, of all, a decay and a rate of each head; what comes out
  const Walk* walk = nullptr;
  std::vector<Piece> pieces;
  std::vector<const Delta*> deltas;  // of each row, those of its adapter, or null; empty: no row has one
  bf16* low[2] = {};                 // [rows][rank]: rows times the lower factor, of two matrices in turn
  std::vector<char> chain;  // of each segment: do its candidates follow one another?
  alignas(64) std::atomic<i64> arrived{0};  // threads, at all barriers
};

struct Scratch {  // of one thread
  Room out, row, gathered, keys, values, wide, scores, shares, states;
};

struct Thread {
  const Model& m;
  const Pass& p;
  Buffers& b;
  const i64 me = omp_get_thread_num(), all = omp_get_num_threads();
  Scratch& s;
  Tiles tiles{};
  const Pieces mine{b.pieces, me, all};
  std::chrono::steady_clock::time_point since = std::chrono::steady_clock::now();

  Thread(const Model& m, const Pass& p, Buffers& b) : m(m), p(p), b(b), s(own()) {
    if (m.tiles()) tiles.set(1, false);
  }
  ~Thread() {
    if (m.tiles()) _tile_release();
  }

  // The matrix unit sleeps after a third of a microsecond without work, and takes as long to wake: a product of nothing,
  // wherever it would wait (and tile 0 is not in use)
  void stir() const {
    if (m.tiles()) _tile_dpbf16ps(0, 4, 6);
  }

  static Scratch& own() {
    static thread_local Scratch scratch;
    return scratch;
  }

  void share(i64 total, i64& first, i64& last) const { first = total * me / all, last = total * (me + 1) / all; }

  // A barrier, as there are ten in a layer. OpenMP's own takes longer, and very long where another process wants a core
  void meet() {
    const i64 before = b.arrived.fetch_add(1, std::memory_order_acq_rel), until = before / all * all + all;
    for (i64 spins = 0; b.arrived.load(std::memory_order_acquire) < until; spins++) {
      stir();
      if (spins < 10000) _mm_pause();
      else sched_yield();  // another thread wants this core
    }
  }

  void done(Part part) {  // everybody has finished this part
    meet();
    if (p.seconds && me == 0) {
      const auto now = std::chrono::steady_clock::now();
      p.seconds[part] += std::chrono::duration<double>(now - since).count();
      since = now;
    }
  }
};

const i64 LARGE_PANEL = 128;  // rows for which a record of groups is made tiles once; their sums fit in the first cache

#include "lora.h"

struct Linears : Thread {
  using Thread::Thread;
  i64 delta = -1;  // which delta of a row's adapter the next product adds; -1: none

  // Low-rank products of the thread's own rows, as far as they have an adapter; does any row of the pass? Of few rows every
  // thread does a part of each row's, and fresh says that its rows have just been written by the thread that owns them
  bool lower(i64 layer, Matrix which, const Activations& a, bool fresh) {
    if (b.deltas.empty()) return false;
    const bool parted = p.rows < 2 * all;
    if (parted && fresh) meet();
    i64 first = 0, last = p.rows;
    if (!parted) share(p.rows, first, last);
    const bf16* here = nullptr;  // what was fetched
    for (i64 row = first; row < last; row++) {
      if (!b.deltas[row]) continue;
      const Delta& d = b.deltas[row][layer * MATRICES + which];
      if (!d.down) continue;
      if (d.down != here) fetch(d.down, d.rank * d.in * 2);
      const bf16* ahead = nullptr;
      here = d.down;
      if (row + 1 < last && b.deltas[row + 1]) {
        const Delta& next = b.deltas[row + 1][layer * MATRICES + which];
        if (next.down != d.down && next.rank >= d.rank) here = ahead = next.down;
      }
      i64 from = 0, to = up(d.rank, 8) / 8;
      if (parted) share(to, from, to);
      const float* scale = m.int8 ? a.scale + row * std::max<i64>(1, a.groups) : nullptr;
      lower_row(m, d, a.data + row * a.stride, scale, b.low[which % 2] + row * m.rank, from * 8, std::min<i64>(to * 8, d.rank), ahead);
    }
    return true;
  }
  void with(i64 layer, Matrix which) { delta = b.deltas.empty() ? -1 : layer * MATRICES + which; }

  // sink(row, first column, 16 sums, the next 16 sums), after scale and bias
  template <class Sink>
  void linear(const Linear& l, const Activations& a, i64 rows, Sink sink) {
    const i64 mine = delta;
    delta = -1;
    if (rows == 0) return;
    const i64 steps = up(l.in, m.int8 ? 64 : 32) / (m.int8 ? 64 : 32), size = m.grouped() ? block_bytes(l) : steps * 2048;
    const i64 panel = m.grouped() && m.tiles() ? LARGE_PANEL : 32;  // rows
    alignas(64) float sums[LARGE_PANEL * 32];
    // beyond: weights to fetch meanwhile, so that the memory never waits
    auto finish = [&](i64 block, i64 row, i64 count, const float* from, const uint8_t* beyond = nullptr) {
      stir();
      __m512 scale[2] = {}, bias[2] = {};
      for (int t = 0; t < 2; t++) {
        if (m.whole()) scale[t] = _mm512_loadu_ps(l.scale + block * 32 + t * 16);
        if (l.bias) bias[t] = _mm512_loadu_ps(l.bias + block * 32 + t * 16);
      }
      for (i64 r = 0; r < count; r++) {
        __m512 y[2] = {_mm512_load_ps(from + r * 32), _mm512_load_ps(from + r * 32 + 16)};
        for (int t = 0; t < 2; t++)
          if (m.grouped()) {
            if (l.bias) y[t] = _mm512_add_ps(y[t], bias[t]);
          } else if (m.int8) {
            const __m512 by = _mm512_mul_ps(set(a.scale[row + r]), scale[t]);
            y[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_castps_si512(y[t])), by, bias[t]);
          } else if (l.bias) y[t] = _mm512_add_ps(y[t], bias[t]);
        if (mine >= 0 && b.deltas[row + r])
          raise(m, b.deltas[row + r][mine], b.low[mine % MATRICES % 2] + (row + r) * m.rank, block,
                r == 0 || b.deltas[row + r] != b.deltas[row + r - 1], y[0], y[1]);
        sink(row + r, block * 32, y[0], y[1]);
        if (beyond) fetch(beyond + r * 128, 128);
      }
    };
    const auto amx = m.int8 ? block_amx<true> : block_amx<false>;
#ifdef PACELINE_NARROW
    const auto avx = m.int8 ? block_avx<BYTES> : block_avx<FLOATS>;
#else
    const auto avx = m.int8 ? block_avx<BYTES> : m.fused() ? block_avx<FLOATS> : block_avx<HALVES>;
#endif
    i64 first, last;
    share(up(l.out, 32) / 32, first, last);
    if (m.tiles()) tiles.set(std::min<i64>(rows, 16), false);
    auto of_outputs = [&](i64 block) {  // its scales and sums: nothing else fetches them in time
      if (m.whole()) fetch(l.scale + block * 32, 128), fetch(l.sums + block * 32, 128);
    };
    if (!m.tiles()) of_outputs(first);
    if (rows <= 16) fetch(a.data, rows * a.stride);  // others have just written much of it
    // 512 KB of weights for all panels of 32 rows: the weights stay in the second cache, a panel in the first
    const i64 group = std::max<i64>(2, (512 << 10) / size / 2 * 2);
    for (; first < last; first += group)
      for (i64 row = 0; row < rows; row += panel)
        for (i64 block = first; block < std::min(first + group, last); block++) {
          const uint8_t *w = l.weight + block * size, *x = a.data + row * a.stride;
          const i64 count = std::min<i64>(rows - row, panel);
          if (m.grouped()) {
            block_grouped(l, w, x, a.stride, a.of(row), up(l.in, GROUP) / GROUP, count, sums, m.tiles() ? &tiles : nullptr);
            finish(block, row, count, sums);
            continue;
          }
          if (m.tiles() && rows <= 16 && block + 1 < last) {
            amx(w, w + steps * 2048, x, nullptr, a.stride, steps, true, sums);
            const uint8_t* beyond = w + (2 * steps + 4) * 2048;
            finish(block, 0, rows, sums, beyond);
            finish(++block, 0, rows, sums + 16 * 32, beyond + steps * 2048);
            continue;
          }
          if (!m.tiles()) of_outputs(block + 1);
          if (m.tiles()) amx(w, nullptr, x, count > 16 ? x + 16 * a.stride : nullptr, a.stride, steps, row == 0, sums);
          else avx(w, x, a.stride, steps, count, m.int8 ? l.sums + block * 32 : nullptr, (__m512i*)sums);
          finish(block, row, count, sums);
        }
  }

  // y [rows][width]: the first columns
  void store(const Linear& l, const Activations& a, i64 rows, float* y, i64 width, float cap = 0, float scale = 1) {
    const i64 outputs = l.out;
    linear(l, a, rows, [=](i64 row, i64 column, __m512 y0, __m512 y1) {
      if (scale != 1) y0 = _mm512_mul_ps(y0, set(scale)), y1 = _mm512_mul_ps(y1, set(scale));
      if (cap > 0) y0 = capped(y0, cap), y1 = capped(y1, cap);
      float* to = y + row * width + column;
      put(to, y0, below(outputs - column));
      put(to + 16, y1, below(outputs - column - 16));
    });
  }

  void add(const Linear& l, const Activations& a, i64 rows, float* x, i64 width, float scale) {
    linear(l, a, rows, [=](i64 row, i64 column, __m512 y0, __m512 y1) {
      float* to = x + row * width + column;
      const __mmask16 m0 = below(width - column), m1 = below(width - column - 16);
      _mm512_mask_storeu_ps(to, m0, _mm512_fmadd_ps(y0, set(scale), _mm512_maskz_loadu_ps(m0, to)));
      _mm512_mask_storeu_ps(to + 16, m1, _mm512_fmadd_ps(y1, set(scale), _mm512_maskz_loadu_ps(m1, to + 16)));
    });
  }
};
