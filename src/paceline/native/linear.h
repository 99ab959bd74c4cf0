// One thread of a pass, and packed linear layers for any number of rows.
#pragma once

#include "base.h"

#define FENCE asm volatile("" ::: "memory")  // the tile intrinsics do not say that they touch memory

// Registers 0-3 are sums, 4 and 5 rows of the left side, 6 and 7 blocks of the right. Attention's shares (5) and values
// (7) hold 16 slots, half the depth of a tile.
struct __attribute__((packed)) Config {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};
};

struct Tiles {  // this thread's configuration; set again only when it changes
  i64 rows = 0;
  bool attention = false;
  void set(i64 count, bool for_attention) {
    if (rows == count && attention == for_attention) return;
    rows = count, attention = for_attention;
    Config config;
    for (int i = 0; i < 8; i++) config.bytes[i] = 64, config.rows[i] = i < 6 ? count : 16;
    if (attention) config.bytes[5] = 32, config.rows[7] = 8;
    _tile_loadconfig(&config);
  }
};

struct Activations {  // rows of bfloat16, float32, or int8 with a scale each; columns padded with zeros to whole steps
  uint8_t* data;
  float* scale;
  i64 stride;  // bytes
};

// sums (float or int32) [16 rows][32 outputs of the block w], and another such square after it: of rows 16 to 31 where
// x2 is given, of the same rows and the block w2 where that is. first: these weights are not in a cache yet
template <bool INT8>
static void block_amx(const uint8_t* w, const uint8_t* w2, const uint8_t* x, const uint8_t* x2, i64 stride, i64 steps, bool first, float* sums) {
#define STEP(a, b, c) \
  if (INT8) { _tile_dpbssd(c, a, b); } else { _tile_dpbf16ps(c, a, b); }
  FENCE;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (i64 k = 0; k < steps; k++) {
    const i64 ahead = w2 && k + 4 >= steps ? 8192 + steps * 2048 : 8192;  // beyond a block of two are the next two
    _tile_loadd(4, x + k * 64, stride);
    _tile_stream_loadd(6, w + k * 2048, 64);
    _tile_stream_loadd(7, w + k * 2048 + 1024, 64);
    if (first) fetch(w + k * 2048 + ahead, 2048);
    STEP(4, 6, 0)
    STEP(4, 7, 1)
    if (x2) {
      _tile_loadd(5, x2 + k * 64, stride);
      STEP(5, 6, 2)
      STEP(5, 7, 3)
    } else if (w2) {
      _tile_stream_loadd(6, w2 + k * 2048, 64);
      _tile_stream_loadd(7, w2 + k * 2048 + 1024, 64);
      fetch(w2 + k * 2048 + ahead, 2048);
      STEP(4, 6, 2)
      STEP(4, 7, 3)
    }
  }
  _tile_stored(0, sums, 128);
  _tile_stored(1, sums + 16, 128);
  if (x2 || w2) {
    _tile_stored(2, sums + 16 * 32, 128);
    _tile_stored(3, sums + 16 * 32 + 16, 128);
  }
  FENCE;
#undef STEP
}

// What rows are multiplied as without AMX: int8 plus 128, bfloat16, or float32, which takes bfloat16 weights apart. A
// word of weights, 32 bits, meets so many bytes of a row
enum Left { BYTES, HALVES, FLOATS };
template <Left LEFT>
constexpr i64 MEETS = LEFT == FLOATS ? 8 : 4;

template <Left LEFT>
static inline void multiply(__m512i& c, __m512i a, __m512i w) {
  if (LEFT == BYTES) c = _mm512_dpbusd_epi32(c, a, w);
  else if (LEFT == HALVES) c = (__m512i)_mm512_dpbf16_ps((__m512)c, (__m512bh)a, (__m512bh)w);
  else c = (__m512i)_mm512_fmadd_ps((__m512)a, (__m512)w, (__m512)c);
}

// Up to so many rows a column after the other: lines as they lie, which memory serves best
template <Left LEFT>
constexpr int FEW = LEFT == BYTES ? 2 : LEFT == HALVES ? 4 : 0;

// What to fetch while something is computed, a line a call, or part of one: from two places in turn
struct Ahead {
  const uint8_t *at, *other;
  i64 step;
  void operator()() {
    prefetch(at), at += step;
    std::swap(at, other);
  }
};

// c += x [ROWS] times two columns of 16, WORDS words of 32 bits deep: those of a row of x follow one another, the columns'
// lie `pitch` bytes apart. ahead() twice a word
template <Left LEFT, int ROWS, int WORDS>
static inline __attribute__((always_inline)) void product(__m512i (&c)[ROWS][2], const void* x, i64 stride, const void* w0,
                                                          const void* w1, i64 pitch, Ahead& ahead) {
  auto left = [=](int r, int word, int half = 0) {
    int32_t four;
    memcpy(&four, (const uint8_t*)x + r * stride + word * MEETS<LEFT> + half * 4, 4);
    return _mm512_set1_epi32(four);
  };
  auto right = [=](int column, int word) { return _mm512_loadu_si512((const uint8_t*)(column ? w1 : w0) + word * pitch); };
#pragma GCC unroll 32
  for (int i = 0; i < 2 * WORDS && ROWS <= FEW<LEFT>; i++) {
    const __m512i w = right(i / WORDS, i % WORDS);
    ahead();
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; r++) multiply<LEFT>(c[r][i / WORDS], left(r, i % WORDS), w);
  }
#pragma GCC unroll 16
  for (int i = 0; i < WORDS && ROWS > FEW<LEFT>; i++) {  // what is on the left is loaded once
    const __m512i first = right(0, i), second = right(1, i);
    ahead(), ahead();
#pragma GCC unroll 2
    for (int half = 0; half < (LEFT == FLOATS ? 2 : 1); half++) {
      auto part = [=](__m512i pair) {  // one bfloat16 of each word, as float32
        return half == 0 ? _mm512_slli_epi32(pair, 16) : _mm512_and_si512(pair, _mm512_set1_epi32(-65536));
      };
      const __m512i w = LEFT == FLOATS ? part(first) : first, other = LEFT == FLOATS ? part(second) : second;
#pragma GCC unroll 8
      for (int r = 0; r < ROWS; r++) {
        const __m512i a = left(r, i, half);
        multiply<LEFT>(c[r][0], a, w), multiply<LEFT>(c[r][1], a, other);
      }
    }
  }
}

const i64 PANEL = 8;  // rows whose sums in two columns fit into the registers

// f(panel, its share of the 64 bytes of a line, its first row, how many as a constant), in panels of about the same size
template <class F>
static inline void panels(i64 rows, F f) {
  const i64 count = (rows + PANEL - 1) / PANEL, share = (64 + count - 1) / count;
  for (i64 p = 0; p < count; p++) {
    const i64 first = rows * p / count;
    switch (rows * (p + 1) / count - first) {
#define ROWS(n) \
  case n: f(p, share, first, std::integral_constant<int, n>()); break;
      ROWS(1) ROWS(2) ROWS(3) ROWS(4) ROWS(5) ROWS(6) ROWS(7) ROWS(8)
#undef ROWS
    }
  }
}

// sums [ROWS][2] += some steps of a block
template <Left LEFT, int ROWS>
static void rows_avx(const uint8_t* w, const uint8_t* x, i64 stride, i64 steps, Ahead ahead, __m512i* sums) {
  __m512i c[ROWS][2];
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; r++) c[r][0] = sums[2 * r], c[r][1] = sums[2 * r + 1];
  for (i64 k = 0; k < steps; k++, w += 2048, x += 16 * MEETS<LEFT>) product<LEFT, ROWS, 16>(c, x, stride, w, w + 1024, 64, ahead);
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; r++) sums[2 * r] = c[r][0], sums[2 * r + 1] = c[r][1];
}

// The block w of x [rows], as in block_amx. 16 KB of it at a time, which stay in the first cache for all panels of rows;
// meanwhile these fetch the next 16 KB, evenly, so that memory never waits
template <Left LEFT>
static void block_avx(const uint8_t* w, const uint8_t* x, i64 stride, i64 steps, i64 rows, const int32_t* of_weights, __m512i* sums) {
  rows = std::max<i64>(rows, FEW<LEFT>);  // one alone asks for lines faster than they come, and takes longer
  for (i64 i = 0; i < 2 * rows; i++) {
    sums[i] = _mm512_setzero_si512();
    if (LEFT == BYTES) sums[i] = _mm512_slli_epi32(_mm512_sub_epi32(sums[i], _mm512_loadu_si512(of_weights + i % 2 * 16)), 7);
  }
  for (i64 k = 0; k < steps; k += 8, w += 8 * 2048, x += 8 * 16 * MEETS<LEFT>) {
    const i64 here = std::min<i64>(8, steps - k);
    panels(rows, [&](i64 p, i64 step, i64 r, auto n) {
      const uint8_t* next = w + 8 * 2048 + p * here * 32 * step;
      rows_avx<LEFT, n>(w, x + r * stride, stride, here, {next, next + step, 2 * step}, sums + 2 * r);
    });
  }
}

// Of attention: queries [first, last) of a segment under one kv head, over some spans. Where other spans of theirs are
// other pieces, it is a `part`, and one of these joins `join` parts. work: about what it costs
struct Piece {
  i64 segment, head, first, last, span, spans, join, work;
  bool part;
};

struct Buffers {
  float *x, *wide, *entry;  // entry: what the layers of a group read
  uint8_t* query;  // bfloat16 or float32
  float* parts;  // [queries][spans][top, sum, .., 16 + dims]
  i64 spans = 0;
  Activations normed, mixed, gated;
  std::vector<Piece> pieces;
  std::vector<char> chain;  // of each segment: do its candidates follow one another?
  alignas(64) std::atomic<i64> arrived{0};  // threads, at all barriers
};

struct Scratch {  // of one thread
  Room out, row, gathered, keys, values;
};

struct Thread {
  const Model& m;
  const Pass& p;
  Buffers& b;
  const i64 me = omp_get_thread_num(), all = omp_get_num_threads();
  Scratch& s;
  Tiles tiles{};
  i64 mine[2] = {0, 0};  // pieces of attention
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
      else sched_yield();  // somebody else wants this core
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

struct Linears : Thread {
  using Thread::Thread;

  // sink(row, first column, 16 sums, the next 16 sums), after scale and bias
  template <class Sink>
  void linear(const Linear& l, const Activations& a, i64 rows, Sink sink) {
    if (rows == 0) return;
    const i64 steps = up(l.in, m.int8 ? 64 : 32) / (m.int8 ? 64 : 32);
    alignas(64) float sums[32 * 32];
    // beyond: weights to fetch meanwhile, so that the memory never waits
    auto finish = [&](i64 block, i64 row, i64 count, const float* from, const uint8_t* beyond = nullptr) {
      stir();
      __m512 scale[2] = {}, bias[2] = {};
      for (int t = 0; t < 2; t++) {
        if (m.int8) scale[t] = _mm512_loadu_ps(l.scale + block * 32 + t * 16);
        if (l.bias) bias[t] = _mm512_loadu_ps(l.bias + block * 32 + t * 16);
      }
      for (i64 r = 0; r < count; r++) {
        __m512 y[2] = {_mm512_load_ps(from + r * 32), _mm512_load_ps(from + r * 32 + 16)};
        for (int t = 0; t < 2; t++)
          if (m.int8) {
            const __m512 by = _mm512_mul_ps(set(a.scale[row + r]), scale[t]);
            y[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_castps_si512(y[t])), by, bias[t]);
          } else if (l.bias) y[t] = _mm512_add_ps(y[t], bias[t]);
        sink(row + r, block * 32, y[0], y[1]);
        if (beyond) fetch(beyond + r * 128, 128);
      }
    };
    const auto amx = m.int8 ? block_amx<true> : block_amx<false>;
    const auto avx = m.int8 ? block_avx<BYTES> : m.fused() ? block_avx<FLOATS> : block_avx<HALVES>;
    i64 first, last;
    share(up(l.out, 32) / 32, first, last);
    if (m.tiles()) tiles.set(std::min<i64>(rows, 16), false);
    auto of_outputs = [&](i64 block) {  // its scales and sums: nobody else fetches them in time
      if (m.int8) fetch(l.scale + block * 32, 128), fetch(l.sums + block * 32, 128);
    };
    if (!m.tiles()) of_outputs(first);
    if (rows <= 16) fetch(a.data, rows * a.stride);  // others have just written much of it
    // 512 KB of weights for all panels of 32 rows: the weights stay in the second cache, a panel in the first
    const i64 group = std::max<i64>(2, (512 << 10) / (steps * 2048) / 2 * 2);
    for (; first < last; first += group)
      for (i64 row = 0; row < rows; row += 32)
        for (i64 block = first; block < std::min(first + group, last); block++) {
          const uint8_t *w = l.weight + block * steps * 2048, *x = a.data + row * a.stride;
          const i64 count = std::min<i64>(rows - row, 32);
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

  void store(const Linear& l, const Activations& a, i64 rows, float* y, i64 width, float cap = 0) {
    linear(l, a, rows, [=](i64 row, i64 column, __m512 y0, __m512 y1) {
      if (cap > 0) y0 = capped(y0, cap), y1 = capped(y1, cap);
      float* to = y + row * width + column;
      _mm512_mask_storeu_ps(to, below(width - column), y0);
      _mm512_mask_storeu_ps(to + 16, below(width - column - 16), y1);
    });
  }

  void add(const Linear& l, const Activations& a, i64 rows, float* x, i64 width) {
    linear(l, a, rows, [=](i64 row, i64 column, __m512 y0, __m512 y1) {
      float* to = x + row * width + column;
      const __mmask16 m0 = below(width - column), m1 = below(width - column - 16);
      _mm512_mask_storeu_ps(to, m0, _mm512_add_ps(_mm512_maskz_loadu_ps(m0, to), y0));
      _mm512_mask_storeu_ps(to + 16, m1, _mm512_add_ps(_mm512_maskz_loadu_ps(m1, to + 16), y1));
    });
  }
};
