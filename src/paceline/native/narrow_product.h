// Products of rows with weights on CPUs without AVX-512: see narrow.h. Sums have the order of product.h's.
// Included by product.h, in place of its own.
#pragma once

namespace narrow {

// Rows whose sums stay in registers. Bfloat16 is widened once for all of them; int8 needs registers of its own
template <Left LEFT>
constexpr int together(int rows) { return LEFT != BYTES && (rows == 5 || rows == 6) ? rows : 4; }

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
#pragma GCC unroll 6
  for (int r = 0; r < ROWS; r++) EVERY sums[r][i] = c[r][which].p[i];
  for (int word = 0; word < WORDS; word++) {
    Words of[PARTS];
    EVERY of[i] = *(const Loose*)(w + word * pitch + i * VECTOR);
    if (ahead) (*ahead)();
    if (LEFT == BYTES) {
#pragma GCC unroll 6
      for (int r = 0; r < ROWS; r++) {
        const Words a = broadcast(x + r * stride + word * 4);
        EVERY sums[r][i] = quads(sums[r][i], of[i], a);
      }
      continue;
    }
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {  // one bfloat16 of each word, as float32
#pragma GCC unroll 6
      for (int r = 0; r < ROWS; r++) {
        const Floats a = (Floats)broadcast(x + r * stride + word * 8 + half * 4);
        EVERY sums[r][i] = (Words)fused(a, (Floats)(half ? of[i] & -65536 : of[i] << 16), (Floats)sums[r][i]);
      }
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < ROWS; r++) EVERY c[r][which].p[i] = sums[r][i];
}

// y [ROWS][16] = x [ROWS][depth] times w [depth][16], added to y if ADD: the sums of `column`, of weights that are float32 already
template <int ROWS, bool ADD>
static inline __attribute__((always_inline)) void sixteen(const float* x, i64 stride, const float* w, i64 depth, float* y, i64 y_stride) {
  Floats sums[ROWS][PARTS];
#pragma GCC unroll 6
  for (int r = 0; r < ROWS; r++) EVERY sums[r][i] = ADD ? (Floats)((const Loose*)(y + r * y_stride))[i] : Floats{};
#pragma GCC unroll 2
  for (i64 k = 0; k < depth; k++, w += 16) {
    Floats of[PARTS];
    EVERY of[i] = ((const Floats*)w)[i];
#pragma GCC unroll 6
    for (int r = 0; r < ROWS; r++) {
      const Floats a = (Floats)broadcast((const uint8_t*)(x + r * stride + k));
      EVERY sums[r][i] = fused(a, of[i], sums[r][i]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < ROWS; r++) EVERY ((Loose*)(y + r * y_stride))[i] = (Words)sums[r][i];
}

// Sixteen words of two bfloat16: the first of each to a line of float32, the second to the next
static inline void widened(const bf16* from, float* to) {
  const I words = load<I>(from);
  store(to, left(words, 16)), store(to + 16, both(words, set(-65536)));
}

}  // namespace narrow

template <Left LEFT, int ROWS, int WORDS>
static inline __attribute__((always_inline)) void product(__m512i (&c)[ROWS][2], const void* x, i64 stride, const void* w0,
                                                          const void* w1, i64 pitch, Ahead& ahead) {
  for (int which = 0; which < 2; which++) {
    const uint8_t *rows = (const uint8_t*)x, *w = (const uint8_t*)(which ? w1 : w0);
    constexpr int TOGETHER = narrow::together<LEFT>(ROWS), all = ROWS / TOGETHER * TOGETHER;
    for (int r = 0; r < all; r += TOGETHER)
      narrow::column<LEFT, TOGETHER, WORDS>(c + r, which, rows + r * stride, stride, w, pitch, r ? nullptr : &ahead);
    if constexpr (ROWS % TOGETHER > 0)
      narrow::column<LEFT, ROWS % TOGETHER, WORDS>(c + all, which, rows + all * stride, stride, w, pitch, all ? nullptr : &ahead);
  }
}
