// Adapters of low rank: y += up (down x), for the rows that have one. Included by linear.h.
//
//   down   [in/16][rank][16] bfloat16: for 16 inputs at a time, those of every number of the low rank
//   up     for every 16 outputs, the columns that are not zero there, [count][16] bfloat16; `tile` says which they are
//
// A row's sums have one order, whatever other rows are in the pass: its bits do not depend on them.
#pragma once

enum Matrix { QKV, VALUE, OUT, GATE_UP, DOWN, MATRICES };  // model/native_adapters.py has the same order

static inline __m512 wide16(const bf16* x) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)x)), 16));
}

// Numbers `from` .. `from` + 15 of the low rank of one row, which lies as it is multiplied: bfloat16, float32 or int8
static void lower_row(const Model& m, const Delta& d, const uint8_t* x, float scale, i64 from, float* low) {
  const i64 count = std::min<i64>(16, d.rank - from);
  const bool flipped = m.int8 && !(NARROW || m.tiles() || m.grouped());  // int8 as unsigned numbers
  const __m128i offset = _mm_set1_epi8(flipped ? -128 : 0);
  for (i64 r = 0; r < count; r += 8) {
    const i64 some = std::min<i64>(8, count - r);
    __m512 sum[8];
    for (__m512& one : sum) one = _mm512_setzero_ps();
    for (i64 k = 0; k < d.in; k += 16) {
      __m512 v;
      if (m.int8) v = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_xor_si128(_mm_loadu_si128((const __m128i*)(x + k)), offset)));
      else v = m.fused() ? _mm512_loadu_ps((const float*)x + k) : wide16((const bf16*)x + k);
      const bf16* w = d.down + (k / 16 * d.rank + from + r) * 16;
      if (some == 8)
        for (int i = 0; i < 8; i++) sum[i] = _mm512_fmadd_ps(v, wide16(w + i * 16), sum[i]);
      else
        for (int i = 0; i < some; i++) sum[i] = _mm512_fmadd_ps(v, wide16(w + i * 16), sum[i]);
    }
    for (int i = 0; i < some; i++) low[from + r + i] = _mm512_reduce_add_ps(sum[i]) * (m.int8 ? scale : 1);
  }
}

// Add to the 32 outputs of a block
static inline void raise(const Delta& d, const float* low, i64 block, __m512 y[2]) {
  if (!d.up) return;
  for (int t = 0; t < 2; t++) {
    const i64* tile = d.tile + (block * 2 + t) * 3;
    const bf16* w = d.up + tile[0] * 16;
    for (i64 r = 0; r < tile[2]; r++) y[t] = _mm512_fmadd_ps(wide16(w + r * 16), set(low[tile[1] + r]), y[t]);
  }
}

// Which rows have which adapter
static void adapt(const Model& m, const Pass& p, Buffers& b) {
  if (!m.adapters) return;
  std::vector<i64> order;
  for (i64 s = 0; s < p.segments; s++)
    if (p.segment[s].adapter && m.adapters[p.segment[s].adapter]) order.push_back(s);
  if (order.empty()) return;
  std::stable_sort(order.begin(), order.end(), [&](i64 x, i64 y) { return p.segment[x].adapter < p.segment[y].adapter; });
  b.deltas.assign(p.rows, nullptr);
  for (i64 s : order)
    for (i64 r = p.segment[s].start; r < p.segment[s].start + p.segment[s].given + p.segment[s].nodes; r++)
      b.deltas[r] = m.adapters[p.segment[s].adapter], b.adapted.push_back(r);
}
