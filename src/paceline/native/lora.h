// Adapters of low rank: y += up (down x), for the rows that have one. Included by linear.h.
//
//   down   [in/32][rank][32] bfloat16: for 32 inputs at a time, those of every number of the low rank
//   up     for every 16 outputs, pairs of the columns that are not zero there, [count/2][16][2] bfloat16
//   tile   [out/16 + 2][2]: of every 16 outputs, its first column in `up`, and the first number of the low rank with the
//          count of columns above it, 16 bits each
//
// The low rank's numbers are rounded to bfloat16, too. A row's sums have one order, whatever other rows are in the pass: its bits do not depend on them.
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

// The low rank's numbers first to last - 1 of one row, which lies as it is multiplied: bfloat16, float32 or int8. scale: of
// int8, of each group where weights lie in groups. first: a multiple of 8
static void lower_row(const Model& m, const Delta& d, const uint8_t* x, const float* scale, bf16* low, i64 first, i64 last) {
  const bool flipped = m.int8 && !(NARROW || m.tiles() || m.grouped());  // int8 as unsigned numbers
  const __m128i offset = _mm_set1_epi8(flipped ? -128 : 0);
  auto numbers = [&](i64 k) {
    if (m.int8) return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_xor_si128(_mm_loadu_si128((const __m128i*)(x + k)), offset)));
    return m.fused() ? _mm512_loadu_ps((const float*)x + k) : wide16((const bf16*)x + k);
  };
  for (i64 r = first; r < last; r += 8) {
    const i64 some = std::min<i64>(8, last - r);
    __m512 sum[8];
    for (__m512& one : sum) one = _mm512_setzero_ps();
    for (i64 k = 0; k < d.in; k += 32) {
      __m512 before[8];
      if (m.grouped())
        for (int i = 0; i < some; i++) before[i] = sum[i], sum[i] = _mm512_setzero_ps();
      auto scaled = [&] {
        if (m.grouped())
          for (int i = 0; i < some; i++) sum[i] = _mm512_fmadd_ps(sum[i], set(scale[k / GROUP]), before[i]);
      };
      const bf16* w = d.down + (k / 32 * d.rank + r) * 32;
      fetch(w + d.rank * 64, some * 64);
#ifndef PACELINE_NARROW
      if (!m.fused()) {  // int8 is exact in bfloat16
        const __m512bh v = m.int8 ? _mm512_cvtne2ps_pbh(numbers(k + 16), numbers(k)) : (__m512bh)_mm512_loadu_si512((const bf16*)x + k);
        auto dot = [&](i64 i) { sum[i] = _mm512_dpbf16_ps(sum[i], v, (__m512bh)_mm512_loadu_si512(w + i * 32)); };
        if (some == 8)
          for (int i = 0; i < 8; i++) dot(i);
        else
          for (int i = 0; i < some; i++) dot(i);
        scaled();
        continue;
      }
#endif
      const __m512 a = numbers(k), c = numbers(k + 16);
      for (int i = 0; i < some; i++)
        sum[i] = _mm512_fmadd_ps(c, wide16(w + i * 32 + 16), _mm512_fmadd_ps(a, wide16(w + i * 32), sum[i]));
      scaled();
    }
    const float by = m.whole() ? *scale : 1;
    for (int i = 0; i < some; i++) low[r + i] = nearest(_mm512_reduce_add_ps(sum[i]) * by);
  }
}

// Add to the 32 outputs of a block; the next block's numbers come meanwhile
static inline void raise(const Model& m, const Delta& d, const bf16* low, i64 block, __m512 y[2]) {
  if (!d.up) return;
  const int32_t* tile = d.tile + block * 4;
  fetch(d.up + (i64)tile[4] * 16, ((tile[5] >> 16) + (tile[7] >> 16)) * 32);
  for (int t = 0; t < 2; t++) {
    const bf16* w = d.up + (i64)tile[2 * t] * 16;
    const bf16* x = low + (tile[2 * t + 1] & 0xffff);
    const i64 count = tile[2 * t + 1] >> 16;
    for (i64 r = 0; r < count; r += 2) {
      int32_t two;
      memcpy(&two, x + r, 4);
      const __m512i words = _mm512_loadu_si512(w + r * 16), both = _mm512_set1_epi32(two);
#ifndef PACELINE_NARROW
      if (!m.fused()) {
        y[t] = _mm512_dpbf16_ps(y[t], (__m512bh)words, (__m512bh)both);
        continue;
      }
#endif
      const __m512i high = _mm512_set1_epi32((int32_t)0xffff0000);
      auto even = [](__m512i it) { return _mm512_castsi512_ps(_mm512_slli_epi32(it, 16)); };
      auto odd = [=](__m512i it) { return _mm512_castsi512_ps(_mm512_and_si512(it, high)); };
      y[t] = _mm512_fmadd_ps(odd(words), odd(both), _mm512_fmadd_ps(even(words), even(both), y[t]));
    }
  }
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
