// Work on whole rows: norms, packing for the next linear layer, the embedding.
#pragma once

#include "linear.h"

struct Rows : Linears {
  using Linears::Linears;

  // RMS norm of x into y; they may be the same
  void norm(const float* x, const float* weight, i64 n, float* y) const {
    stir();
    const __m512 sum = strands(n, set(0), [&](__m512 sum, i64 i, __mmask16 k) {
      const __m512 v = _mm512_maskz_loadu_ps(k, x + i);
      return _mm512_fmadd_ps(v, v, sum);
    }, [](__m512 a, __m512 b) { return _mm512_add_ps(a, b); });
    const __m512 factor = set(1.f / std::sqrt(_mm512_reduce_add_ps(sum) + n * (float)m.eps));
    each(n, [&](i64 i, __mmask16 k) {
      const __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(k, x + i), _mm512_maskz_loadu_ps(k, weight + i));
      put(y + i, _mm512_mul_ps(v, factor), k);
    });
  }

  // The layers' own norm of a row, whatever it is; y is another place than x
  void norm(const float* x, const Norm& how, float* y) const {
    const i64 n = m.hidden;
    if (!how.weight) {
      memcpy(y, x, n * 4);
      return;
    }
    if (m.centred) {
      const __m512 sum = strands(n, set(0), [&](__m512 sum, i64 i, __mmask16 k) {
        return _mm512_add_ps(sum, _mm512_maskz_loadu_ps(k, x + i));
      }, [](__m512 a, __m512 b) { return _mm512_add_ps(a, b); });
      const __m512 mean = set(_mm512_reduce_add_ps(sum) / n);
      each(n, [&](i64 i, __mmask16 k) { put(y + i, _mm512_sub_ps(_mm512_maskz_loadu_ps(k, x + i), mean), k); });
    }
    norm(m.centred ? y : x, how.weight, n, y);
    if (how.bias)
      each(n, [&](i64 i, __mmask16 k) {
        put(y + i, _mm512_add_ps(_mm512_maskz_loadu_ps(k, y + i), _mm512_maskz_loadu_ps(k, how.bias + i)), k);
      });
  }

  // How many groups of a row share a scale where it meets `l` (and `other`): whose scales are whole, those of a record
  i64 scaled(const Linear& l, const Linear& other = {}) const {
    return !m.grouped() ? 0 : whole_scales(l.form) || whole_scales(other.form) ? RECORD : 1;
  }

  // groups: see `scaled`
  void pack(const float* x, i64 n, const Activations& a, i64 row, i64 groups) const {
    stir();
    uint8_t* to = a.data + row * a.stride;
    if (!m.int8) {
      each(n, [&](i64 i, __mmask16 k) { keep(to, i, m.fused(), _mm512_maskz_loadu_ps(k, x + i), k); });
      return;
    }
    if (!groups) {
      a.scale[row] = quantise(x, n, to);
      return;
    }
    float* scale = a.scale + row * a.groups;
    for (i64 g = 0; g * GROUP < n; g += groups) {
      const float by = quantise(x + g * GROUP, std::min(groups * GROUP, n - g * GROUP), to + g * GROUP);
      for (i64 i = g; i < std::min(g + groups, a.groups); i++) scale[i] = by;
    }
    sum_groups((const int8_t*)to, a, row);
  }

  // n numbers to int8 by the largest of them: their scale, NaN if one of them is
  float quantise(const float* x, i64 n, uint8_t* to) const {
    auto wider = [](__m512 a, __m512 b) {  // of numbers from 0 on, as their bits are ordered: NaN is above all
      return _mm512_castsi512_ps(_mm512_max_epi32(_mm512_castps_si512(a), _mm512_castps_si512(b)));
    };
    const __m512 most = strands(n, set(0), [&](__m512 most, i64 i, __mmask16 k) {
      return wider(most, _mm512_abs_ps(_mm512_maskz_loadu_ps(k, x + i)));
    }, wider);
    const float scale = _mm512_cmp_ps_mask(most, most, _CMP_UNORD_Q) ? NAN : _mm512_reduce_max_ps(most) / 127.f;
    stir();
    const __m512 inverse = set(scale > 0 ? 1.f / scale : 0.f);
    const __m128i offset = _mm_set1_epi8(NARROW || m.tiles() || m.grouped() ? 0 : -128);
    each(n, [&](i64 i, __mmask16 k) {
      const __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_maskz_loadu_ps(k, x + i), inverse));
      _mm_mask_storeu_epi8(to + i, k, _mm_xor_si128(_mm512_cvtsepi32_epi8(q), offset));
    });
    return scale;
  }

  // Sums of the numbers of each group and half group of a row, or of the two pairs of each quad of a half group
  void sum_groups(const int8_t* x, const Activations& a, i64 row) const {
    int16_t* of_groups = a.wholes + row * wholes_each(a.groups);
    int16_t* of_halves = of_groups + up(a.groups, 2);
    for (i64 g = 0; g < a.groups; g++) {
      int16_t part[2];
      for (int i = 0; i < 2; i++) {
        const int8_t* half = x + g * GROUP + i * 16;
#if defined PACELINE_NARROW && !defined __aarch64__
        if (lanes::SPLITS) {
          const __m128i pairs = _mm_maddubs_epi16(_mm_set1_epi8(1), _mm_loadu_si128((const __m128i*)half));
          const __m128i two = _mm_add_epi16(pairs, _mm_unpackhi_epi64(pairs, pairs)), one = _mm_add_epi16(two, _mm_srli_epi64(two, 32));
          const int32_t both = _mm_cvtsi128_si32(one);
          memcpy(of_halves + 4 * g + 2 * i, &both, 4);
          part[i] = (int16_t)both + (int16_t)(both >> 16);
          continue;
        }
#endif
        of_halves[2 * g + i] = part[i] = sum_of_16(half);
      }
      of_groups[g] = part[0] + part[1];
      a.sums[row * a.groups + g] = of_groups[g];
    }
    if (a.groups % 2) of_groups[a.groups] = 0;
  }

  void norm_rows(const float* x, const Norm& how, i64 rows, const i64* which, float* copy, i64 groups) {
    const i64 n = m.hidden;
    float* y = room<float>(s.row, up(n, 16));
    i64 first, last;
    share(rows, first, last);
    if (!which && last - first <= 16) fetch(x + first * n, (last - first) * n * 4);
    for (i64 r = first; r < last; r++) {
      norm(x + (which ? which[r] : r) * n, how, y);
      if (copy) memcpy(copy + r * n, y, n * 4);
      pack(y, n, b.normed, r, groups);
    }
  }

  void pack_rows(const float* x, i64 width, const Activations& a, i64 groups) {
    i64 first, last;
    share(p.rows, first, last);
    if (last - first <= 16) fetch(x + first * width, (last - first) * width * 4);
    for (i64 r = first; r < last; r++) pack(x + r * width, width, a, r, groups);
  }

  void add_normed(const float* y, const Norm& how) {  // x += scale norm(y)
    const i64 n = m.hidden;
    const float scale = (float)m.residual_scale;
    float* z = room<float>(s.row, up(n, 16));
    i64 first, last;
    share(p.rows, first, last);
    for (i64 r = first; r < last; r++) {
      norm(y + r * n, how, z);
      for (i64 i = 0; i < n; i++) b.x[r * n + i] += scale * z[i];
    }
  }

  void embed() {
    i64 first, last;
    share(p.rows, first, last);
    for (i64 r = first; r < last; r++) {
      if (!m.embedding) weights_of(m.lookup, p.token[r], b.x + r * m.hidden);
      for (i64 i = 0; i < m.hidden; i++) {
        float value = b.x[r * m.hidden + i];
        if (m.embedding) {
          const uint32_t bits = (uint32_t)m.embedding[p.token[r] * m.hidden + i] << 16;
          memcpy(&value, &bits, 4);
        }
        b.x[r * m.hidden + i] = value * (float)m.embedding_scale;
      }
    }
  }
};
