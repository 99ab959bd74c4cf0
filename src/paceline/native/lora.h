// Adapters of low rank: y += up (down x), for the rows that have one. Included by linear.h.
//
//   down   [rank/8][in/32][8][32] bfloat16: of 8 numbers of the low rank at a time (at last of as many as there are), for 32
//          inputs at a time, those of each
//   up     for every 16 outputs, pairs of the columns that are not zero there, [count/2][16][2] bfloat16
//   tile   [out/16 + 2][2]: of every 16 outputs, its first column in `up`, and the first number of the low rank with the
//          count of columns above it, 16 bits each
//
// The low rank's numbers are rounded to bfloat16, too, and so is a row in int8 where each group of it has a scale. A row's sums have one order, whatever other rows are in the pass: its bits do not depend on them.
#pragma once

enum Matrix { QKV, VALUE, OUT, GATE_UP, DOWN, MATRICES };  // model/native_adapters.py has the same order

static inline __m512 wide16(const bf16* x) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)x)), 16));
}

static inline bf16 nearest(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

// The sums of 8 vectors
static inline void sums_of(const __m512 v[8], float to[8]) {
#ifdef PACELINE_NARROW
  for (int i = 0; i < 8; i++) to[i] = _mm512_reduce_add_ps(v[i]);
#else
  auto two = [](__m512 a, __m512 b) { return _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)); };
  auto four = [&](const __m512* v) {  // by 128 bits
    const __m512d a = _mm512_castps_pd(two(v[0], v[1])), b = _mm512_castps_pd(two(v[2], v[3]));
    return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
  };
  const __m512 a = four(v), b = four(v + 4);
  const __m512 both = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
  const __m512 all = _mm512_add_ps(both, _mm512_shuffle_f32x4(both, both, 0xb1));
  _mm_storeu_ps(to, _mm512_castps512_ps128(all)), _mm_storeu_ps(to + 4, _mm512_extractf32x4_ps(all, 2));
#endif
}

// A row of int8 as it is multiplied by factors: bfloat16, exact but where groups have scales; or float32
static const void* widened(const Model& m, const uint8_t* x, const float* scale, i64 in) {
  static thread_local Room room;
  const bool flipped = !(NARROW || m.tiles() || m.grouped());  // as unsigned numbers
  const __m128i offset = _mm_set1_epi8(flipped ? -128 : 0);
  uint8_t* to = (uint8_t*)::room<CacheLine>(room, up(in, 32) / 32 * (m.fused() ? 2 : 1));
  auto numbers = [&](i64 k) {
    const __m512 y = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_xor_si128(_mm_loadu_si128((const __m128i*)(x + k)), offset)));
    return m.grouped() ? _mm512_mul_ps(y, set(scale[k / GROUP])) : y;
  };
  for (i64 k = 0; k < in; k += 32) {
    const __m512 a = numbers(k), b = numbers(k + 16);
#ifndef PACELINE_NARROW
    if (!m.fused()) {
      _mm512_storeu_si512((bf16*)to + k, (__m512i)_mm512_cvtne2ps_pbh(b, a));
      continue;
    }
#endif
    _mm512_storeu_ps((float*)to + k, a), _mm512_storeu_ps((float*)to + k + 16, b);
  }
  return to;
}

// SOME numbers of the low rank of one row, of bfloat16 or float32. ahead: what to fetch meanwhile, as large; or null
template <int SOME>
static void lower_some(const Model& m, i64 in, const void* row, const bf16* w, const bf16* ahead, float by, bf16* low) {
  __m512 sum[8];
  for (__m512& one : sum) one = _mm512_setzero_ps();
#ifndef PACELINE_NARROW
  if (!m.fused()) {
    auto one = [&](i64 k) __attribute__((always_inline)) {
      const __m512bh v = (__m512bh)_mm512_loadu_si512((const bf16*)row + k);
#pragma GCC unroll 8
      for (int i = 0; i < SOME; i++) sum[i] = _mm512_dpbf16_ps(sum[i], v, (__m512bh)_mm512_loadu_si512(w + (k * SOME + i * 32)));
    };
    if (ahead)
      for (i64 k = 0; k < in; k += 32) fetch(ahead + k * SOME, SOME * 64), one(k);
    else
      for (i64 k = 0; k < in; k += 32) one(k);
  } else
#endif
    for (i64 k = 0; k < in; k += 32, w += SOME * 32) {
      if (ahead) fetch(ahead + k * SOME, SOME * 64);
      const __m512 a = _mm512_loadu_ps((const float*)row + k), c = _mm512_loadu_ps((const float*)row + k + 16);
#pragma GCC unroll 8
      for (int i = 0; i < SOME; i++)
        sum[i] = _mm512_fmadd_ps(c, wide16(w + i * 32 + 16), _mm512_fmadd_ps(a, wide16(w + i * 32), sum[i]));
    }
  float sums[8];
  sums_of(sum, sums);
  for (int i = 0; i < SOME; i++) low[i] = nearest(sums[i] * by);
}

// The low rank's numbers first to last - 1 of one row, which lies as it is multiplied: bfloat16, float32 or int8. scale: of
// int8, of each group where weights lie in groups. first: a multiple of 8
static void lower_row(const Model& m, const Delta& d, const uint8_t* x, const float* scale, bf16* low, i64 first, i64 last, const bf16* ahead) {
  const void* row = m.int8 ? widened(m, x, scale, d.in) : x;
  const float by = m.whole() ? *scale : 1;
  for (i64 r = first; r < last; r += 8) {
    const i64 some = std::min<i64>(8, last - r), at = r * d.in;
    const auto part = some == 8 ? lower_some<8> : some == 4 ? lower_some<4> : some == 6 ? lower_some<6> : lower_some<2>;
    part(m, d.in, row, d.down + at, ahead ? ahead + at : nullptr, by, low + r);
  }
}

// y += columns of `up` for 16 outputs, times the numbers of the low rank that belong to them
static inline void raise16(const Model& m, const bf16* w, const bf16* x, i64 count, __m512& y) {
  for (i64 r = 0; r < count; r += 2) {
    int32_t two;
    memcpy(&two, x + r, 4);
    const __m512i words = _mm512_loadu_si512(w + r * 16), both = _mm512_set1_epi32(two);
#ifndef PACELINE_NARROW
    if (!m.fused()) {
      y = _mm512_dpbf16_ps(y, (__m512bh)words, (__m512bh)both);
      continue;
    }
#endif
    const __m512i high = _mm512_set1_epi32((int32_t)0xffff0000);
    auto even = [](__m512i it) { return _mm512_castsi512_ps(_mm512_slli_epi32(it, 16)); };
    auto odd = [=](__m512i it) { return _mm512_castsi512_ps(_mm512_and_si512(it, high)); };
    y = _mm512_fmadd_ps(odd(words), odd(both), _mm512_fmadd_ps(even(words), even(both), y));
  }
}

// Add to the 32 outputs of a block. next: fetch those of the next block meanwhile
static inline void raise(const Model& m, const Delta& d, const bf16* low, i64 block, bool next, __m512& y0, __m512& y1) {
  if (!d.up) return;
  const int32_t* tile = d.tile + block * 4;
  const bf16 *w0 = d.up + (i64)tile[0] * 16, *w1 = d.up + (i64)tile[2] * 16, *x0 = low + (tile[1] & 0xffff);
  const i64 count = tile[1] >> 16;
  if (next) fetch(d.up + (i64)tile[4] * 16, ((tile[5] >> 16) + (tile[7] >> 16)) * 32);
#ifndef PACELINE_NARROW
  if (tile[1] == tile[3] && !m.fused()) {
    auto part = [&](i64 r) __attribute__((always_inline)) {
      int32_t two;
      memcpy(&two, x0 + r, 4);
      const __m512bh both = (__m512bh)_mm512_set1_epi32(two);
      y0 = _mm512_dpbf16_ps(y0, (__m512bh)_mm512_loadu_si512(w0 + r * 16), both);
      y1 = _mm512_dpbf16_ps(y1, (__m512bh)_mm512_loadu_si512(w1 + r * 16), both);
    };
    i64 r = 0;
    for (; r + 8 <= count; r += 8) part(r), part(r + 2), part(r + 4), part(r + 6);
    for (; r < count; r += 2) part(r);
    return;
  }
#endif
  raise16(m, w0, x0, count, y0);
  raise16(m, w1, low + (tile[3] & 0xffff), tile[3] >> 16, y1);
}

// Which rows have which adapter
static void adapt(const Model& m, const Pass& p, Buffers& b) {
  if (!m.adapters) return;
  auto has = [&](i64 s) { return p.segment[s].adapter && m.adapters[p.segment[s].adapter]; };
  for (i64 s = 0; s < p.segments; s++) {
    if (!has(s)) continue;
    if (b.deltas.empty()) b.deltas.assign(p.rows, nullptr);
    const Segment& seg = p.segment[s];
    std::fill_n(b.deltas.begin() + seg.start, seg.given + seg.nodes, m.adapters[seg.adapter]);
  }
}
