// Products of rows with blocks of 32 outputs: of AMX, or of AVX-512.
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
// word of weights, 32 bits, meets this many bytes of a row
enum Left { BYTES, HALVES, FLOATS };
template <Left LEFT>
constexpr i64 MEETS = LEFT == FLOATS ? 8 : 4;

#ifndef PACELINE_NARROW
template <Left LEFT>
static inline void multiply(__m512i& c, __m512i a, __m512i w) {
  if (LEFT == BYTES) c = _mm512_dpbusd_epi32(c, a, w);
  else if (LEFT == HALVES) c = (__m512i)_mm512_dpbf16_ps((__m512)c, (__m512bh)a, (__m512bh)w);
  else c = (__m512i)_mm512_fmadd_ps((__m512)a, (__m512)w, (__m512)c);
}

#endif

// Up to this many rows, one column after the other: lines as they lie, which memory serves best
template <Left LEFT>
constexpr int FEW = NARROW ? 0 : LEFT == BYTES ? 2 : LEFT == HALVES ? 4 : 0;

// What to fetch while something is computed, a line a call, or part of one: from two places in turn
struct Ahead {
  const uint8_t *at, *other;
  i64 step;
  void operator()() {
    prefetch(at), at += step;
    std::swap(at, other);
  }
};

#ifdef PACELINE_NARROW
#include "narrow_product.h"
#else
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

#endif

// Rows whose sums in two columns fit into the registers; without AVX-512 in one column (narrow_product.h: together)
template <Left LEFT>
constexpr i64 PANEL = NARROW && LEFT == FLOATS ? 6 : 8;

// f(panel, its share of the 64 bytes of a line, its first row, how many as a constant), in panels of about the same size
template <Left LEFT, class F>
static inline void panels(i64 rows, F f) {
  const i64 count = (rows + PANEL<LEFT> - 1) / PANEL<LEFT>, share = (64 + count - 1) / count;
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
    if (LEFT == BYTES && !NARROW) sums[i] = _mm512_slli_epi32(_mm512_sub_epi32(sums[i], _mm512_loadu_si512(of_weights + i % 2 * 16)), 7);
  }
  for (i64 k = 0; k < steps; k += 8, w += 8 * 2048, x += 8 * 16 * MEETS<LEFT>) {
    const i64 here = std::min<i64>(8, steps - k);
    panels<LEFT>(rows, [&](i64 p, i64 step, i64 r, auto n) {
      const uint8_t* next = w + 8 * 2048 + p * here * 32 * step;
      rows_avx<LEFT, n>(w, x + r * stride, stride, here, {next, next + step, 2 * step}, sums + 2 * r);
    });
  }
}
