// Drawing tokens: core/noise.py and sample/race.py are the slow twins.
#pragma once

#include "base.h"

static __m512i mixed(__m512i x) {  // core/noise.py: SplitMix64's finaliser
  x = _mm512_xor_si512(x, _mm512_srli_epi64(x, 30));
  x = _mm512_mullo_epi64(x, _mm512_set1_epi64(0xBF58476D1CE4E5B9ll));
  x = _mm512_xor_si512(x, _mm512_srli_epi64(x, 27));
  x = _mm512_mullo_epi64(x, _mm512_set1_epi64(0x94D049BB133111EBll));
  return _mm512_xor_si512(x, _mm512_srli_epi64(x, 31));
}

// The 52 random bits behind the uniforms of 8 tokens
static __m512i counts(uint64_t key, i64 token) {
  const __m512i lane = _mm512_set_epi64(8, 7, 6, 5, 4, 3, 2, 1);  // token + 1
  const __m512i n = _mm512_add_epi64(_mm512_set1_epi64(token), lane);
  const __m512i step = _mm512_mullo_epi64(n, _mm512_set1_epi64(0x9E3779B97F4A7C15ll));
  return _mm512_srli_epi64(mixed(_mm512_add_epi64(_mm512_set1_epi64(key), step)), 12);
}

// The largest number and the first place of it; -1 where it is -inf, or where one is NaN
static i64 largest(const float* x, i64 n, float& top) {
  __m512 most = set(-INFINITY);
  __mmask16 none = 0;
  each(n, [&](i64 i, __mmask16 k) {
    const __m512 v = _mm512_mask_loadu_ps(most, k, x + i);
    none |= _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    most = _mm512_max_ps(most, v);
  });
  top = _mm512_reduce_max_ps(most);
  if (none || top == -INFINITY) return -1;
  for (i64 i = 0;; i += 16) {
    const __mmask16 k = below(n - i);
    if (const __mmask16 equal = _mm512_mask_cmp_ps_mask(k, _mm512_maskz_loadu_ps(k, x + i), set(top), _CMP_EQ_OQ))
      return i + __builtin_ctz(equal);
  }
}

// argmax of x / temperature + Gumbel(key), the lowest at ties; -1 where nothing is finite. sample/race.py says why few
// tokens need their exact value; here 8 at a time are bounded.
static i64 race(const float* x, i64 n, double temperature, uint64_t key, Room& bounds) {
  float top;
  if (largest(x, n, top) < 0 || top == INFINITY) return -1;
  float* bound = room<float>(bounds, up(n, 16));
  const __m512i ones = _mm512_set1_epi64((1ll << 52) - 1);
  const __m512 inverse = set((float)(1 / temperature));
  __m512 smallest = set(INFINITY);
  for (i64 i = 0; i < n; i += 16) {
    const __m256 low = _mm512_cvtepi64_ps(_mm512_xor_si512(counts(key, i), ones));
    const __m256 high = _mm512_cvtepi64_ps(_mm512_xor_si512(counts(key, i + 8), ones));
    const __m512 v = _mm512_add_ps(_mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1), set(.5f));
    const __mmask16 k = below(n - i);
    const __m512 z = _mm512_mul_ps(_mm512_sub_ps(_mm512_maskz_loadu_ps(k, x + i), set(top)), inverse);
    // exponential() stops at e^-87, far below any contender: its bound is too small there, never too large
    const __m512 b = _mm512_mask_div_ps(set(INFINITY), k, v, exponential(z));
    smallest = _mm512_min_ps(smallest, b);
    _mm512_storeu_ps(bound + i, b);
  }
  const double b = std::min((double)_mm512_reduce_min_ps(smallest) * std::ldexp(1.0001, -52), 1 - std::ldexp(1., -53));
  const __m512 limit = set((float)(-std::log1p(-b) * std::ldexp(1.0001, 52)));
  double best = -INFINITY;
  i64 winner = -1;
  for (i64 i = 0; i < n; i += 16)
    for (uint32_t left = _mm512_cmp_ps_mask(_mm512_loadu_ps(bound + i), limit, _CMP_LE_OQ); left; left &= left - 1) {
      const i64 token = i + __builtin_ctz(left);
      alignas(64) i64 bits[8];
      _mm512_store_si512(bits, counts(key, token / 8 * 8));
      const double u = (bits[token % 8] + .5) * std::ldexp(1., -52);
      const double value = (double)x[token] / temperature - std::log(-std::log(u));
      if (value > best) best = value, winner = token;
    }
  return winner;
}

// log p of the distribution with logits x / temperature; NaN where all of them are -inf, or one is inf or NaN
static void log_law(const float* x, i64 n, double temperature, float* to) {
  float top;
  const bool some = largest(x, n, top) >= 0 && top < INFINITY;
  const __m512 inverse = set((float)(1 / std::max(temperature, 1e-30))), most = set(top);
  __m512 sum = _mm512_setzero_ps();
  each(n, [&](i64 i, __mmask16 k) {
    const __m512 z = _mm512_mul_ps(_mm512_sub_ps(_mm512_maskz_loadu_ps(k, x + i), most), inverse);
    sum = _mm512_mask_add_ps(sum, k, sum, exponential(z));
    _mm512_mask_storeu_ps(to + i, k, z);
  });
  const __m512 all = set(some ? std::log(_mm512_reduce_add_ps(sum)) : NAN);
  each(n, [&](i64 i, __mmask16 k) { put(to + i, _mm512_sub_ps(_mm512_maskz_loadu_ps(k, to + i), all), k); });
}

// Rows of logits x [rows][width] to log p of the distribution at the row's temperature: sample/filters.py is the slow twin
extern "C" void paceline_law(const float* x, i64 rows, i64 width, const double* temperature, i64 threads, float* to) {
  parallel(threads, rows, [=](i64 r) { log_law(x + r * width, width, temperature[r], to + r * width); });
}

extern "C" void paceline_winners(const float* x, i64 rows, i64 width, i64 threads, i64* winners) {
  parallel(std::min(threads, (rows + 3) / 4), rows, [=](i64 r) {
    float top;
    winners[r] = largest(x + r * width, width, top);
  });
}

// Winners of rows of log-probabilities x [rows][width]
extern "C" void paceline_race(const float* x, i64 rows, i64 width, const i64* keys, i64 threads, i64* winners) {
  parallel(threads, rows, [=](i64 r) {
    static thread_local Room bounds;
    winners[r] = race(x + r * width, width, 1, keys[r], bounds);
  });
}
