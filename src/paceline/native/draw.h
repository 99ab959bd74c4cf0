// Drawing tokens: core/noise.py and sample/race.py are the slow twins.
#pragma once

#include "rules.h"

#include <functional>

extern "C" {
struct Warp {  // of a row: core/warp.py. Temperature 0: greedy
  double temperature, min_p, top_p;
  i64 top_k;
  const Rules* rules;  // or null; applied before the functions below
  bool filters() const { return top_k > 0 || top_p < 1 || min_p > 0; }
};
}

static __m512i mixed(__m512i x) {  // core/noise.py: SplitMix64's finaliser
  x = _mm512_xor_si512(x, _mm512_srli_epi64(x, 30));
  x = _mm512_mullo_epi64(x, _mm512_set1_epi64(0xBF58476D1CE4E5B9ll));
  x = _mm512_xor_si512(x, _mm512_srli_epi64(x, 27));
  x = _mm512_mullo_epi64(x, _mm512_set1_epi64(0x94D049BB133111EBll));
  return _mm512_xor_si512(x, _mm512_srli_epi64(x, 31));
}

const uint64_t GOLDEN = 0x9E3779B97F4A7C15ull;

struct Counts {  // the 52 random bits behind the uniforms of tokens, 8 at a time, from a multiple of 8 on
  __m512i at;

  explicit Counts(uint64_t key, i64 token = 0) {
    const __m512i n = _mm512_set_epi64(8, 7, 6, 5, 4, 3, 2, 1);  // token + 1
    at = _mm512_add_epi64(_mm512_set1_epi64(key + token * GOLDEN), _mm512_mullo_epi64(n, _mm512_set1_epi64((i64)GOLDEN)));
  }
  void pass(i64 tokens) { at = _mm512_add_epi64(at, _mm512_set1_epi64((i64)(tokens * GOLDEN))); }
  __m512i next() {
    const __m512i found = _mm512_srli_epi64(mixed(at), 12);
    pass(8);
    return found;
  }
};

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

static __mmask16 finite(__m512 z, __mmask16 k) { return _mm512_mask_cmp_ps_mask(k, z, set(-INFINITY), _CMP_GT_OQ); }

// argmax of x / temperature + Gumbel(key), the lowest at ties; -1 where nothing is finite. sample/race.py says why few
// tokens need their exact value; here 8 at a time are bounded.
static i64 race(const float* x, i64 n, double temperature, uint64_t key, Room& bounds) {
  float top;
  if (largest(x, n, top) < 0 || top == INFINITY) return -1;
  float* bound = room<float>(bounds, up(n, 16));
  const __m512i ones = _mm512_set1_epi64((1ll << 52) - 1);
  const __m512 inverse = set((float)(1 / temperature));
  __m512 smallest = set(INFINITY);
  Counts noise(key);
  for (i64 i = 0; i < n; i += 16) {
    const __mmask16 k = below(n - i);
    const __m512 raw = _mm512_maskz_loadu_ps(k, x + i);
    if (!finite(raw, k)) {  // what filters left nothing of
      _mm512_storeu_ps(bound + i, set(INFINITY));
      noise.pass(16);
      continue;
    }
    const __m256 low = _mm512_cvtepi64_ps(_mm512_xor_si512(noise.next(), ones));
    const __m256 high = _mm512_cvtepi64_ps(_mm512_xor_si512(noise.next(), ones));
    const __m512 v = _mm512_add_ps(_mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1), set(.5f));
    const __m512 z = _mm512_mul_ps(_mm512_sub_ps(raw, set(top)), inverse);
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
      _mm512_store_si512(bits, Counts(key, token / 8 * 8).next());
      const double u = (bits[token % 8] + .5) * std::ldexp(1., -52);
      const double value = (double)x[token] / temperature - std::log(-std::log(u));
      if (value > best) best = value, winner = token;
    }
  return winner;
}

// The k-th largest of z, -inf where there are fewer above that. `best`: these k, or all, in no order
static float kth(const float* z, i64 n, i64 k, std::vector<float>& best) {
  float least = -INFINITY;
  best.clear();
  if (k > n) k = n;
  auto cut = [&] {
    std::nth_element(best.begin(), best.begin() + k - 1, best.end(), std::greater<float>());
    best.resize(k), least = best[k - 1];
  };
  for (i64 i = 0; i < n; i += 16) {
    const __mmask16 here = below(n - i);
    uint32_t left = _mm512_mask_cmp_ps_mask(here, _mm512_maskz_loadu_ps(here, z + i), set(least), _CMP_GT_OQ);
    for (; left; left &= left - 1) best.push_back(z[i + __builtin_ctz(left)]);
    if ((i64)best.size() >= k + std::max<i64>(k, 256)) cut();
  }
  if ((i64)best.size() < k) return -INFINITY;
  cut();
  return least;
}

struct Total {  // of e^z, in float64: what top-p leaves depends on its last digits
  double lanes[16] = {};
  alignas(64) float e[16];

  void add(__m512 z, __mmask16 k) {
    _mm512_storeu_ps(e, _mm512_mask_add_ps(_mm512_setzero_ps(), k, exponential(z), _mm512_setzero_ps()));
    for (i64 i = 0; i < 16; i++) lanes[i] += e[i];
  }
  double all() const {
    double sum = 0;
    for (double lane : lanes) sum += lane;
    return sum;
  }
};

// What is below the floor becomes -inf: the sum of e^z of the rest
static double above(float* z, i64 n, float floor) {
  Total total;
  each(n, [&](i64 i, __mmask16 k) {
    const __m512 v = _mm512_maskz_loadu_ps(k, z + i);
    const __mmask16 some = finite(v, k), kept = some & _mm512_mask_cmp_ps_mask(k, set(floor), v, _CMP_LE_OQ);
    if (kept) total.add(v, kept);
    if (kept != some) put(z + i, _mm512_mask_add_ps(set(-INFINITY), kept, v, _mm512_setzero_ps()), k);
  });
  return total.all();
}

// Where the sum of the largest e^z reaches `wanted`; -inf where that of all does not
static float reached(const float* z, i64 n, double wanted, std::vector<float>& best) {
  Total one;
  auto search = [&](double before) -> float {
    std::sort(best.begin(), best.end(), std::greater<float>());
    for (size_t i = 0; i < best.size(); i++) {
      if (i % 16 == 0) {
        const __mmask16 k = below(best.size() - i);
        one.add(_mm512_maskz_loadu_ps(k, &best[i]), k);
      }
      if ((before += one.e[i % 16]) >= wanted) return best[i];
    }
    return -INFINITY;
  };
  for (i64 few : {64, 1024}) {  // most texts need no more
    if (few >= n) break;
    kth(z, n, few, best);
    const float floor = search(0);
    if (floor > -INFINITY || (i64)best.size() < few) return floor;
  }
  const i64 BINS = 1536;  // of 1/16, down to e^-96
  std::vector<double> share(BINS);
  auto bin = [](float v) { return (i64)std::min((float)(BINS - 1), v * -16); };
  each(n, [&](i64 i, __mmask16 k) {
    const __m512 v = _mm512_maskz_loadu_ps(k, z + i);
    uint32_t left = finite(v, k);
    one.add(v, k);
    for (; left; left &= left - 1) share[bin(z[i + __builtin_ctz(left)])] += one.e[__builtin_ctz(left)];
  });
  i64 last = 0;
  double before = 0;
  while (last < BINS - 1 && before + share[last] < wanted) before += share[last++];
  best.clear();
  for (i64 i = 0; i < n; i++)
    if (z[i] > -INFINITY && bin(z[i]) == last) best.push_back(z[i]);
  const float floor = search(before);
  return floor > -INFINITY || best.empty() ? floor : best.back();  // sums in another order
}

// log p of the distribution with logits x / temperature, after the filters; NaN where all of them are -inf, or one is inf or NaN
static void log_law(const float* x, i64 n, const Warp& warp, float* to) {
  float top;
  const bool some = largest(x, n, top) >= 0 && top < INFINITY, filters = warp.filters();
  const __m512 inverse = set((float)(1 / std::max(warp.temperature, 1e-30))), most = set(top);
  __m512 sum = _mm512_setzero_ps();
  each(n, [&](i64 i, __mmask16 k) {
    const __m512 z = _mm512_mul_ps(_mm512_sub_ps(_mm512_maskz_loadu_ps(k, x + i), most), inverse);
    if (!filters) sum = _mm512_mask_add_ps(sum, k, sum, exponential(z));
    put(to + i, z, k);
  });
  double all = _mm512_reduce_add_ps(sum);
  if (filters && some) {
    static thread_local std::vector<float> best;
    const float likely = warp.min_p > 0 ? std::log((float)warp.min_p) : -INFINITY;
    all = above(to, n, warp.top_k > 0 ? std::max(likely, kth(to, n, warp.top_k, best)) : likely);
    if (warp.top_p < 1) all = above(to, n, reached(to, n, warp.top_p * all, best));
  }
  const __m512 whole = set(some ? filters ? (float)std::log(all) : std::log((float)all) : NAN);
  each(n, [&](i64 i, __mmask16 k) { put(to + i, _mm512_sub_ps(_mm512_maskz_loadu_ps(k, to + i), whole), k); });
}

// The token that a row of logits draws; -1 where nothing is finite
static i64 drawn(const float* x, i64 n, const Warp& warp, uint64_t key, Room& law, Room& bounds) {
  float top;
  if (!(warp.temperature > 0)) return largest(x, n, top);
  float* log_p = room<float>(law, n);
  log_law(x, n, warp, log_p);
  return race(log_p, n, 1, key, bounds);
}

// Rows of logits x [rows][width] to log p of the distribution that each draws from: sample/filters.py is the slow twin
extern "C" void paceline_law(const float* x, i64 rows, i64 width, const Warp* warp, i64 threads, float* to) {
  parallel(threads, rows, [=](i64 r) { log_law(x + r * width, width, warp[r], to + r * width); });
}

// Rows of logits x [rows][width] as the rules of their texts change them, each behind its path: `length` tokens of `path`
extern "C" void paceline_edit(float* x, i64 rows, i64 width, const Warp* warp, const i64* path, const i64* length, i64 threads) {
  std::vector<i64> first(rows);
  for (i64 r = 1; r < rows; r++) first[r] = first[r - 1] + length[r - 1];
  parallel(threads, rows, [&](i64 r) {
    if (warp[r].rules) edit(x + r * width, width, *warp[r].rules, {path + first[r], path + first[r] + length[r]});
  });
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
