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

#ifdef __aarch64__
// c [ROWS] = a group's codes times rows of x
template <int BITS, int ROWS>
static inline __attribute__((always_inline)) void dots(const uint8_t* w, const uint8_t* x, i64 stride, __m512i* c) {
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
}
#else
#if defined __AVXVNNI__
#define QUADS _mm256_dpbusd_avx_epi32
#elif defined __AVX512VNNI__
#define QUADS _mm256_dpbusd_epi32
#endif

// sums += some groups of WIDE vectors of 8 outputs, as rows_grouped: as many rows as leave all sums in registers. Without
// VNNI products of 15 and 127 add up to 16 bits over a group; of 8 bits the two halves do so apart. KEEP: the compiler would
// put the additions in another order, and then find no registers for them
#define KEEP(x) asm("" : "+x"(x))
template <int BITS, int ROWS, int WIDE>
static inline __attribute__((always_inline)) void groups_of(const uint8_t* w, const uint8_t* x, i64 stride, const float* of_rows, i64 groups,
                                                            i64 count, i64 ahead, const float* scale, const float* low, float* sums) {
  const __m256i mask = _mm256_set1_epi8(15);
  __m256 total[ROWS][WIDE];
#pragma GCC unroll 4
  for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
    for (int i = 0; i < WIDE; i++) total[r][i] = _mm256_loadu_ps(sums + r * 32 + i * 8);
  for (i64 g = 0; g < count; g++, w += BITS * 64, x += 32, scale += 16, low += 16) {
    if (ahead) fetch(w + ahead, BITS * 64);
    __m256i c[ROWS][WIDE] = {}, high[ROWS][WIDE] = {};
#pragma GCC unroll 8
    for (int line = 0; line < BITS; line++) {
      __m256i codes[WIDE], first[WIDE], second[WIDE];
#pragma GCC unroll 2
      for (int i = 0; i < WIDE; i++) {
        codes[i] = _mm256_loadu_si256((const __m256i*)(w + line * 64 + i * 32));
        first[i] = _mm256_and_si256(codes[i], mask), second[i] = _mm256_and_si256(_mm256_srli_epi16(codes[i], 4), mask);
      }
#pragma GCC unroll 4
      for (int r = 0; r < ROWS; r++) {
        auto four = [&](int which) { return (__m256i)broadcast(x + r * stride + which * 4); };
        const __m256i a = four(BITS == 8 ? line : 2 * line), b = BITS == 8 ? a : four(2 * line + 1);
#pragma GCC unroll 2
        for (int i = 0; i < WIDE; i++) {
#ifdef QUADS
          c[r][i] = QUADS(c[r][i], BITS == 8 ? codes[i] : first[i], a);
          if (BITS == 4) c[r][i] = QUADS(c[r][i], second[i], b);
#else
          __m256i& other = BITS == 8 ? high[r][i] : c[r][i];
          c[r][i] = _mm256_add_epi16(c[r][i], _mm256_maddubs_epi16(first[i], a));
          KEEP(c[r][i]);
          other = _mm256_add_epi16(other, _mm256_maddubs_epi16(second[i], b));
          KEEP(other);
#endif
        }
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
      for (int i = 0; i < WIDE; i++) {
#ifndef QUADS
        const __m256i ones = _mm256_set1_epi16(1);
        c[r][i] = _mm256_madd_epi16(c[r][i], ones);
        if (BITS == 8) c[r][i] = _mm256_add_epi32(c[r][i], _mm256_slli_epi32(_mm256_madd_epi16(high[r][i], ones), 4));
#endif
        total[r][i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(c[r][i]), _mm256_loadu_ps(scale + i * 8), total[r][i]);
        total[r][i] = _mm256_fmadd_ps(_mm256_broadcast_ss(of_rows + r * groups + g), _mm256_loadu_ps(low + i * 8), total[r][i]);
      }
  }
#pragma GCC unroll 4
  for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
    for (int i = 0; i < WIDE; i++) _mm256_storeu_ps(sums + r * 32 + i * 8, total[r][i]);
}
#undef KEEP
#undef QUADS
#endif

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

#ifdef __aarch64__
template <int BITS, int ROWS>
static inline __attribute__((always_inline)) void dots(const uint8_t* w, const uint8_t* x, i64 stride, i64 ahead, __m512i (&c)[ROWS]) {
  const int all = ROWS / narrow::TOGETHER * narrow::TOGETHER;
  fetch(w + ahead, BITS * 64);
  for (int r = 0; r < all; r += narrow::TOGETHER) narrow::dots<BITS, narrow::TOGETHER>(w, x + r * stride, stride, c + r);
  if constexpr (ROWS % narrow::TOGETHER > 0)
    narrow::dots<BITS, ROWS % narrow::TOGETHER>(w, x + all * stride, stride, c + all);
}
#else
// See grouped.h. Of up to two rows all 16 outputs at once
template <int BITS, int ROWS>
static void rows_grouped(const uint8_t* w, const uint8_t* x, i64 stride, const float* of_rows, i64 groups, i64 count, i64 ahead,
                         const float (*scale)[16], const float (*low)[16], float* sums) {
  auto some = [&](int r, auto n) {
    constexpr int WIDE = n <= 2 ? 2 : 1;
    for (int i = 0; i < 2; i += WIDE)
      narrow::groups_of<BITS, n, WIDE>(w + i * 32, x + r * stride, stride, of_rows + r * groups, groups, count, r || i ? 0 : ahead,
                                       *scale + i * 8, *low + i * 8, sums + r * 32 + i * 8);
  };
  constexpr int all = ROWS / narrow::TOGETHER * narrow::TOGETHER;
  for (int r = 0; r < all; r += narrow::TOGETHER) some(r, std::integral_constant<int, narrow::TOGETHER>());
  if constexpr (ROWS % narrow::TOGETHER > 0) some(all, std::integral_constant<int, ROWS % narrow::TOGETHER>());
}
#endif
