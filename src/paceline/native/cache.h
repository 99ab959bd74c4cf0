// Keys and values in their pool: bfloat16, or, if the model says so, int8 with a scale (bfloat16) for every 32 numbers.
#pragma once

#include "rows.h"

struct Cache : Rows {
  using Rows::Rows;

  i64 dims() const { return up(m.head_dim, 32); }
  i64 group() const { return m.heads / m.kv_heads; }
  i64 group_of(i64 layer, i64 head, i64 at) const { return place(at, m.layer[layer].kept * m.kv_heads + head, m.kept * m.kv_heads); }
  bf16* pool(bf16* all, i64 layer, i64 head, i64 at) const { return all + group_of(layer, head, at) * 16 * dims(); }

  struct Bytes {  // a group of the int8 pool, laid out as one of bfloat16, and its scales [dims/32][16 slots]
    int8_t* codes;
    bf16* scales;
    const bf16* of(i64 d) const { return scales + d / 32 * 16; }
  };
  Bytes bytes(bool values, i64 layer, i64 head, i64 at) const {
    const i64 group = group_of(layer, head, at);
    return {(int8_t*)(values ? m.values : m.keys) + group * 16 * dims(), (values ? m.value_scales : m.key_scales) + group * dims() / 2};
  }

  static float wide(bf16 x) {
    const uint32_t bits = (uint32_t)x << 16;
    float y;
    memcpy(&y, &bits, 4);
    return y;
  }
  static bf16 rounded(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  }
  static __m512i rounded(__m512 low, __m512 high) {  // words of two bfloat16
#ifdef PACELINE_NARROW
    return _mm512_or_si512(narrow::halved(low), _mm512_slli_epi32(narrow::halved(high), 16));
#else
    auto words = [](__m512 x) { return _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(x)); };
    return _mm512_or_si512(words(low), _mm512_slli_epi32(words(high), 16));
#endif
  }
  // Sixteen pairs of int8, the first of each times `low`, the second times `high`
  static __m512i pairs(const int8_t* codes, __m512 low, __m512 high) {
    const __m512i x = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)codes));
    const __m512 a = _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(x, 24), 24));
    const __m512 b = _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(x, 16), 24));
    return rounded(_mm512_mul_ps(a, low), _mm512_mul_ps(b, high));
  }
  static __m512 scales_of(const bf16* sixteen) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)sixteen)), 16));
  }

  // A head's numbers into a lane of a group
  void write(const float* x, i64 lane, bool values, const Bytes& to) const {
    for (i64 first = 0; first < dims(); first += 32) {
      auto part = [&](i64 d) { return _mm512_maskz_loadu_ps(below(m.head_dim - d), x + d); };
      const __m512 low = part(first), high = part(first + 16);
      const float most = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(low), _mm512_abs_ps(high)));
      auto finite = [](__m512 x) { return _mm512_cmp_ps_mask(_mm512_abs_ps(x), set(0x1p127f), _CMP_LE_OQ) == 0xffff; };
      const bool whole = finite(low) && finite(high);
      const bf16 scale = !whole ? 0x7fc0 : most > 1e-30f ? rounded(most / 127) : 0;  // NaN
      const __m512 inverse = set(scale ? 1 / wide(scale) : 0);
      alignas(16) int8_t codes[32];
      _mm_storeu_si128((__m128i*)codes, _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(low, inverse))));
      _mm_storeu_si128((__m128i*)(codes + 16), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(high, inverse))));
      to.scales[first / 32 * 16 + lane] = scale;
      for (i64 d = 0; d < 32; d++) {
        const i64 at = first + d;
        to.codes[values ? (lane / 2 * dims() + at) * 2 + lane % 2 : (at / 2 * 16 + lane) * 2 + at % 2] = codes[d];
      }
    }
  }

  // A group of keys, or of values, as the pool of bfloat16 has it
  void widen(bool values, const Bytes& from, bf16* to) const {
    if (values) {
      for (i64 lane = 0; lane < 16; lane += 2)
        for (i64 d = 0; d < dims(); d += 16) _mm512_storeu_si512(to + (lane / 2 * dims() + d) * 2, two_values(from, lane, d));
      return;
    }
    for (i64 first = 0; first < dims(); first += 32) {
      const __m512 scale = scales_of(from.of(first));
      for (i64 d = first; d < first + 32; d += 2) _mm512_storeu_si512(to + d * 16, pairs(from.codes + d * 16, scale, scale));
    }
  }
  __m512i two_values(const Bytes& from, i64 lane, i64 d) const {
    return pairs(from.codes + (lane / 2 * dims() + d) * 2, set(wide(from.of(d)[lane])), set(wide(from.of(d)[lane + 1])));
  }

  void turn(float* x, const Layer& l, i64 position) const {
    const i64 half = l.rotated / 2;
    const float *cosines = l.turn + position * 2 * l.rotated, *sines = cosines + l.rotated + half;
    each(half, [=](i64 i, __mmask16 k) {
      const __m512 a = _mm512_maskz_loadu_ps(k, x + i), c = _mm512_maskz_loadu_ps(k, x + half + i);
      const __m512 cos = _mm512_maskz_loadu_ps(k, cosines + i), sin = _mm512_maskz_loadu_ps(k, sines + i);
      put(x + i, _mm512_fmsub_ps(a, cos, _mm512_mul_ps(c, sin)), k);
      put(x + half + i, _mm512_fmadd_ps(c, cos, _mm512_mul_ps(a, sin)), k);
    });
  }

  // A head's numbers as bfloat16, zeros beyond their end
  void narrow(const float* x, bf16* to) const {
    for (i64 d = 0; d < dims(); d += 32) {
      const __m512 low = _mm512_maskz_loadu_ps(below(m.head_dim - d), x + d);
      const __m512 high = _mm512_maskz_loadu_ps(below(m.head_dim - d - 16), x + d + 16);
      _mm512_storeu_si512(to + d, (__m512i)_mm512_cvtne2ps_pbh(high, low));
    }
  }

  // Where `rope` will write: few cache lines of each row, far apart
  void expect(i64 layer) const {
    if (m.bytes) return;
    i64 first, last, before = -1;
    share(p.rows * m.kv_heads, first, last);
    for (i64 i = first; i < last; i++) {
      const i64 at = p.slot[i % p.rows] / 16, head = i / p.rows;
      const bf16* values = pool(m.values, layer, head, at) + p.slot[i % p.rows] % 16 / 2 * dims() * 2;
      for (i64 d = 0; d < dims(); d += 16) prefetchw(values + d * 2);
      if (i % p.rows == 0 || at != before)
        for (i64 line = 0; line < 16 * dims(); line += 32) prefetchw(pool(m.keys, layer, head, at) + line);
      before = at;
    }
  }

  // q and k of each row, normed over all their heads together: model/blocks.py, WholeNorm
  void norm_heads(const Layer& l) const {
    const i64 n = m.head_dim, each_kv = (group() + 1) * n, width = (m.heads + 2 * m.kv_heads) * n;
    i64 first, last;
    share(p.rows, first, last);
    for (i64 row = first; row < last; row++) {
      float* line = b.wide + row * width;
      auto part = [&](i64 from, i64 count, const float* weight) {  // `count` heads from `from` on, of each kv head
        __m512 sum = set(0);
        for (i64 head = 0; head < m.kv_heads; head++)
          each(count * n, [&](i64 i, __mmask16 k) {
            const __m512 v = _mm512_maskz_loadu_ps(k, line + head * each_kv + from * n + i);
            sum = _mm512_fmadd_ps(v, v, sum);
          });
        const i64 all = m.kv_heads * count * n;
        const __m512 factor = set(1.f / std::sqrt(_mm512_reduce_add_ps(sum) + all * (float)m.eps));
        for (i64 head = 0; head < m.kv_heads; head++)
          each(count * n, [&](i64 i, __mmask16 k) {
            float* at = line + head * each_kv + from * n + i;
            const __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(k, at), _mm512_maskz_loadu_ps(k, weight + head * count * n + i));
            put(at, _mm512_mul_ps(v, factor), k);
          });
      };
      part(0, group(), l.head_norm), part(group(), 1, l.head_norm + m.heads * n);
    }
  }

  // A value that is not finite would reach rows that do not see it, whose share of it is 0: it becomes zeros, and its key NaN,
  // which only those that see it meet. So all values of a pool are finite, and a score is NaN, never an infinity that other
  // cuts of a softmax would weigh otherwise. `k`, `v`: a head's numbers of a row
  void guard(float* k, float* v) const {
    const i64 n = m.head_dim;
    const __m512 limit = set(m.bytes ? 0x1p127f : 0x1.fep127f);  // the latter is the largest bfloat16
    __mmask16 all = 0xffff;
    each(n, [&](i64 i, __mmask16 here) {
      auto size = [=](const float* x) { return _mm512_abs_ps(_mm512_maskz_loadu_ps(here, x + i)); };
      all &= _mm512_cmp_ps_mask(size(k), limit, _CMP_LE_OQ) & _mm512_cmp_ps_mask(size(v), limit, _CMP_LE_OQ);
    });
    if (all != 0xffff) std::fill_n(k, n, NAN), std::fill_n(v, n, 0.f);
  }

  // Head norms and rotation of the rows' q and k; queries to their buffer, keys and values to their slots. Rows that share a
  // group of slots write there together, by whole cache lines: each of many small stores holds up the loads after it
  void rope(const Layer& l, i64 layer) {
    const i64 n = m.head_dim, width = (m.heads + 2 * m.kv_heads) * n;
    bf16 *turned = room<bf16>(s.gathered, 32 * dims()), *plain = turned + 16 * dims();  // keys, values by lane
    i64 first, last;
    share(p.rows * m.kv_heads, first, last);
    while (first < last) {
      const i64 head = first / p.rows, at = p.slot[first % p.rows] / 16;
      __mmask16 lanes = 0;
      for (; first < last && first / p.rows == head && p.slot[first % p.rows] / 16 == at; first++) {
        stir();
        const i64 row = first % p.rows, lane = p.slot[row] % 16;
        float* line = b.wide + row * width + head * (group() + 1) * n;
        for (i64 g = 0; g < group(); g++) {
          float* q = line + g * n;
          if (l.head_norm && !m.joint) norm(q, l.head_norm + (head * group() + g) * n, n, q);
          turn(q, l, p.position[row]);
          uint8_t* to = b.query + ((head * p.rows + row) * group() + g) * dims() * m.wide();
          if (m.fused()) memset(to, 0, dims() * 4), memcpy(to, q, n * 4);
          else narrow(q, (bf16*)to);
        }
        float *k = line + group() * n, *v = b.wide + row * width + (m.heads + m.kv_heads + head) * n;
        if (l.head_norm && !m.joint) norm(k, l.head_norm + (m.heads + head) * n, n, k);
        turn(k, l, p.position[row]);
        guard(k, v);
        if (m.bytes) {
          write(k, lane, false, bytes(false, layer, head, at));
          write(v, lane, true, bytes(true, layer, head, at));
          continue;
        }
        narrow(k, turned + lane * dims());
        narrow(v, plain + lane * dims());
        lanes |= 1 << lane;
      }
      if (m.bytes) continue;
      bf16 *keys = pool(m.keys, layer, head, at), *values = pool(m.values, layer, head, at);
      for (i64 d = 0; d < dims(); d += 32) {
        __m512i square[16];
        for (i64 j = 0; j < 16; j++) square[j] = _mm512_loadu_si512(turned + j * dims() + d);
        transpose(square);
        for (i64 j = 0; j < 16; j++) _mm512_mask_storeu_epi32(keys + (d / 2 + j) * 32, lanes, square[j]);
      }
      for (i64 j = 0; j < 16; j += 2) {
        const __mmask32 there = (lanes >> j & 1) * 0x55555555u | (lanes >> j & 2) * 0x55555555u;
        for (i64 d = 0; there && d < dims(); d += 16) {
          const bf16* two = plain + j * dims() + d;
          const __m512i low = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)two));
          const __m512i high = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)(two + dims())));
          _mm512_mask_storeu_epi16(values + (j / 2 * dims() + d) * 2, there, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
        }
      }
    }
  }

  i64 slot(i64 segment, i64 position) const {
    return p.table[segment * p.width + position / m.block_size] * m.block_size + position % m.block_size;
  }

  // Sixteen keys side by side, from any slots; -1: none
  void gather_keys(i64 layer, i64 head, const i64* slots, bf16* keys) const {
    memset(keys, 0, 16 * dims() * 2);
    for (i64 j = 0; j < 16; j++) {
      if (slots[j] < 0) continue;
      if (m.bytes) {
        const i64 lane = slots[j] % 16;
        const Bytes from = bytes(false, layer, head, slots[j] / 16);
        for (i64 d = 0; d < dims(); d++)
          keys[d / 2 * 32 + j * 2 + d % 2] = rounded(from.codes[(d / 2 * 16 + lane) * 2 + d % 2] * wide(from.of(d)[lane]));
        continue;
      }
      const bf16* k = pool(m.keys, layer, head, slots[j] / 16) + slots[j] % 16 * 2;
      for (i64 d = 0; d < dims(); d += 2) memcpy(keys + d * 16 + j * 2, k + d * 16, 4);
    }
  }

  // The same of values. The first `together` lie side by side in the pool
  void gather_values(i64 layer, i64 head, const i64* slots, i64 together, bf16* values) const {
    if (together > 0 && m.bytes) widen(true, bytes(true, layer, head, slots[0] / 16), values);
    else if (together > 0) memcpy(values, pool(m.values, layer, head, slots[0] / 16), 16 * dims() * 2);
    else memset(values, 0, 16 * dims() * 2);
    for (i64 j = together; j < 16; j++) {
      if (slots[j] < 0) continue;
      const i64 lane = slots[j] % 16;
      const bf16* v = pool(m.values, layer, head, slots[j] / 16) + lane / 2 * dims() * 2;
      for (i64 d = 0; d < dims(); d += 16) {
        __m512i two = m.bytes ? two_values(bytes(true, layer, head, slots[j] / 16), lane / 2 * 2, d) : _mm512_loadu_si512(v + d * 2);
        if (lane % 2 == 0) two = _mm512_slli_epi32(two, 16);
        if (j % 2 == 0) two = _mm512_srli_epi32(two, 16);
        _mm512_mask_storeu_epi16(values + (j / 2 * dims() + d) * 2, 0x55555555u << j % 2, two);
      }
    }
  }
};
