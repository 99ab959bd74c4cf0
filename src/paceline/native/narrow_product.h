// Products of rows with weights on CPUs without AVX-512: see narrow.h. Sums have the order of product.h's and grouped.h's.
// Included by product.h, in place of its own.
#pragma once

namespace narrow {

const int TOGETHER = 4;  // rows whose sums stay in registers

// c += the four bytes of each word of w times those of x, both signed, none -128
static inline Words quads(Words c, Words w, Words x) {
#ifdef __aarch64__
  return (Words)vdotq_s32((int32x4_t)c, (int8x16_t)w, (int8x16_t)x);
#else
  const __m256i size = _mm256_abs_epi8((__m256i)w), turned = _mm256_sign_epi8((__m256i)x, (__m256i)w);
#if defined __AVXVNNI__
  return (Words)_mm256_dpbusd_avx_epi32((__m256i)c, size, turned);
#elif defined __AVX512VNNI__
  return (Words)_mm256_dpbusd_epi32((__m256i)c, size, turned);
#else
  return c + (Words)_mm256_madd_epi16(_mm256_maddubs_epi16(size, turned), _mm256_set1_epi16(1));
#endif
#endif
}

static inline Words broadcast(const uint8_t* at) {
  int32_t four;
  memcpy(&four, at, 4);
  return Words{} + four;
}

// sums of ROWS rows and a column of 16
template <Left LEFT, int ROWS, int WORDS>
static inline __attribute__((always_inline)) void column(__m512i (*c)[2], int which, const uint8_t* x, i64 stride, const uint8_t* w,
                                                         i64 pitch, Ahead* ahead) {
  Words sums[ROWS][PARTS];
#pragma GCC unroll 4
  for (int r = 0; r < ROWS; r++) EVERY sums[r][i] = c[r][which].p[i];
  for (int word = 0; word < WORDS; word++) {
    Words of[PARTS];
    memcpy(of, w + word * pitch, 64);
    if (ahead) (*ahead)();
    if (LEFT == BYTES) {
#pragma GCC unroll 4
      for (int r = 0; r < ROWS; r++) {
        const Words a = broadcast(x + r * stride + word * 4);
        EVERY sums[r][i] = quads(sums[r][i], of[i], a);
      }
      continue;
    }
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {  // one bfloat16 of each word, as float32
#pragma GCC unroll 4
      for (int r = 0; r < ROWS; r++) {
        const Floats a = (Floats)broadcast(x + r * stride + word * 8 + half * 4);
        EVERY sums[r][i] = (Words)fused(a, (Floats)(half ? of[i] & -65536 : of[i] << 16), (Floats)sums[r][i]);
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < ROWS; r++) EVERY c[r][which].p[i] = sums[r][i];
}

// c [ROWS] = a group's codes times rows of x
template <int BITS, int ROWS>
static inline __attribute__((always_inline)) void dots(const uint8_t* w, const uint8_t* x, i64 stride, __m512i* c) {
#ifdef __aarch64__
  for (int part = 0; part < PARTS; part++) {
    int32x4_t sum[ROWS] = {}, of_rows[ROWS] = {};
    for (int line = 0; line < BITS; line++) {
      const uint8x16_t codes = vld1q_u8(w + line * 64 + part * 16);
      for (int r = 0; r < ROWS; r++) {
        auto four = [&](int which) { return (int8x16_t)broadcast(x + r * stride + which * 4); };
        if (BITS == 8) {  // codes less 128
          sum[r] = vdotq_s32(sum[r], (int8x16_t)veorq_u8(codes, vdupq_n_u8(128)), four(line));
          of_rows[r] = vdotq_s32(of_rows[r], vdupq_n_s8(1), four(line));
        } else {
          sum[r] = vdotq_s32(sum[r], (int8x16_t)vandq_u8(codes, vdupq_n_u8(15)), four(2 * line));
          sum[r] = vdotq_s32(sum[r], (int8x16_t)vshrq_n_u8(codes, 4), four(2 * line + 1));
        }
      }
    }
    for (int r = 0; r < ROWS; r++) c[r].p[part] = (Words)vaddq_s32(sum[r], vshlq_n_s32(of_rows[r], 7));
  }
#elif defined __AVXVNNI__ || defined __AVX512VNNI__
#ifdef __AVXVNNI__
#define QUADS _mm256_dpbusd_avx_epi32
#else
#define QUADS _mm256_dpbusd_epi32
#endif
  const __m256i mask = _mm256_set1_epi8(15);
#pragma GCC unroll 2
  for (int part = 0; part < PARTS; part++) {
    __m256i sum[ROWS] = {};
#pragma GCC unroll 8
    for (int line = 0; line < BITS; line++) {
      const __m256i codes = _mm256_loadu_si256((const __m256i*)(w + line * 64 + part * 32));
#pragma GCC unroll 4
      for (int r = 0; r < ROWS; r++) {
        auto four = [&](int which) { return (__m256i)broadcast(x + r * stride + which * 4); };
        if (BITS == 8) {
          sum[r] = QUADS(sum[r], codes, four(line));
          continue;
        }
        sum[r] = QUADS(sum[r], _mm256_and_si256(codes, mask), four(2 * line));
        sum[r] = QUADS(sum[r], _mm256_and_si256(_mm256_srli_epi16(codes, 4), mask), four(2 * line + 1));
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; r++) c[r].p[part] = (Words)sum[r];
  }
#undef QUADS
#else
  // Products of 15 and 127 add up to 16 bits over a group; of 8 bits the two halves do so apart
  const __m256i mask = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
#pragma GCC unroll 2
  for (int part = 0; part < PARTS; part++) {
    __m256i low[ROWS] = {}, high[ROWS] = {};
#pragma GCC unroll 8
    for (int line = 0; line < BITS; line++) {
      const __m256i codes = _mm256_loadu_si256((const __m256i*)(w + line * 64 + part * 32));
      const __m256i first = _mm256_and_si256(codes, mask), second = _mm256_and_si256(_mm256_srli_epi16(codes, 4), mask);
#pragma GCC unroll 4
      for (int r = 0; r < ROWS; r++) {
        auto four = [&](int which) { return (__m256i)broadcast(x + r * stride + which * 4); };
        low[r] = _mm256_add_epi16(low[r], _mm256_maddubs_epi16(first, four(BITS == 8 ? line : 2 * line)));
        __m256i& other = BITS == 8 ? high[r] : low[r];
        other = _mm256_add_epi16(other, _mm256_maddubs_epi16(second, four(BITS == 8 ? line : 2 * line + 1)));
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; r++) {
      const __m256i sum = _mm256_madd_epi16(low[r], ones);
      c[r].p[part] = (Words)(BITS == 8 ? _mm256_add_epi32(sum, _mm256_slli_epi32(_mm256_madd_epi16(high[r], ones), 4)) : sum);
    }
  }
#endif
}

}  // namespace narrow

template <Left LEFT, int ROWS, int WORDS>
static inline __attribute__((always_inline)) void product(__m512i (&c)[ROWS][2], const void* x, i64 stride, const void* w0,
                                                          const void* w1, i64 pitch, Ahead& ahead) {
  for (int which = 0; which < 2; which++) {
    const uint8_t *rows = (const uint8_t*)x, *w = (const uint8_t*)(which ? w1 : w0);
    const int all = ROWS / narrow::TOGETHER * narrow::TOGETHER;
    for (int r = 0; r < all; r += narrow::TOGETHER)
      narrow::column<LEFT, narrow::TOGETHER, WORDS>(c + r, which, rows + r * stride, stride, w, pitch, r ? nullptr : &ahead);
    if constexpr (ROWS % narrow::TOGETHER > 0)
      narrow::column<LEFT, ROWS % narrow::TOGETHER, WORDS>(c + all, which, rows + all * stride, stride, w, pitch, all ? nullptr : &ahead);
  }
}

template <int BITS, int ROWS>
static inline __attribute__((always_inline)) void dots(const uint8_t* w, const uint8_t* x, i64 stride, i64 ahead, __m512i (&c)[ROWS]) {
  const int all = ROWS / narrow::TOGETHER * narrow::TOGETHER;
  fetch(w + ahead, BITS * 64);
  for (int r = 0; r < all; r += narrow::TOGETHER) narrow::dots<BITS, narrow::TOGETHER>(w, x + r * stride, stride, c + r);
  if constexpr (ROWS % narrow::TOGETHER > 0)
    narrow::dots<BITS, ROWS % narrow::TOGETHER>(w, x + all * stride, stride, c + all);
}
