// Products of rows with weights in groups, for every CPU: one kernel over vectors of LANES outputs. Included by grouped.h.
//
// The sum of a group is a whole number and exact, whatever multiplies. Of forms with whole scales (`Wholes`) a record's sum is
// one, too: S = sum of a (codes x), B = sum of b x, both below 2^31; floats come in once in a record. Without VNNI the products
// of 15 and 127 add up to 16 bits over a group of 4 bits, over half of one of 5, and over half of one of 6 less 2^zero times
// its inputs, whose largest sum is 8 x 32 x 127 (modulo 2^16 on the way); what is wider is split into two halves of 4 bits. The
// multiplication that widens these sums to 32 bits brings the scale along.
#pragma once

#include "product.h"

namespace lanes {

#ifdef __aarch64__
typedef int32_t V __attribute__((vector_size(16)));
typedef float VF __attribute__((vector_size(16)));
typedef uint16_t V16 __attribute__((vector_size(16)));
const int LANES = 4;
const bool SPLITS = false;
static inline V load(const void* at) { V y; memcpy(&y, at, 16); return y; }
static inline VF loadf(const float* at) { VF y; memcpy(&y, at, 16); return y; }
static inline void storef(float* at, VF x) { memcpy(at, &x, 16); }
static inline V four(const uint8_t* at) { int32_t x; memcpy(&x, at, 4); return V{} + x; }
static inline V bytes(int x) { return V{} + (int32_t)((uint8_t)x * 0x01010101u); }
static inline V both(V a, V b) { return a & b; }
static inline V any(V a, V b) { return a | b; }
template <int BY> static inline V right(V a) {  // of its 16-bit numbers; left where it is below 0
  if constexpr (BY >= 0) return (V)((V16)a >> BY);
  else return (V)((V16)a << -BY);
}
static inline V looked(V table, V codes) { return (V)vqtbl1q_u8((uint8x16_t)table, (uint8x16_t)codes); }
static inline V table(const uint8_t* at) { return load(at); }
static inline VF floats(V x) { return (VF)vcvtq_f32_s32((int32x4_t)x); }
static inline VF product(VF a, VF b) { return a * b; }
static inline VF fma(VF a, VF b, VF c) { return (VF)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b); }
static inline VF all(float x) { return VF{} + x; }
static inline V signed_dot(V c, V w, V x) { return (V)vdotq_s32((int32x4_t)c, (int8x16_t)w, (int8x16_t)x); }
static inline V times(V a, V b) { return a * b; }
static inline V plus(V a, V b) { return a + b; }
static inline V minus(V a, V b) { return a - b; }
static inline V shifted(V a, int by) { return a << by; }
// c + the two 16-bit numbers of each word of a times those of b
static inline V pairs(V c, V a, V b) {
  auto low = [](V x) { return x << 16 >> 16; };
  return c + low(a) * low(b) + (a >> 16) * (b >> 16);
}
#elif defined PACELINE_NARROW
typedef __m256i V;
typedef __m256 VF;
const int LANES = 8;
static inline V load(const void* at) { return _mm256_loadu_si256((const __m256i*)at); }
static inline VF loadf(const float* at) { return _mm256_loadu_ps(at); }
static inline void storef(float* at, VF x) { _mm256_storeu_ps(at, x); }
static inline V four(const uint8_t* at) { int32_t x; memcpy(&x, at, 4); return _mm256_set1_epi32(x); }
static inline V bytes(int x) { return _mm256_set1_epi8(x); }
static inline V both(V a, V b) { return _mm256_and_si256(a, b); }
static inline V any(V a, V b) { return _mm256_or_si256(a, b); }
template <int BY> static inline V right(V a) {
  if constexpr (BY > 0) return _mm256_srli_epi16(a, BY);
  else if constexpr (BY < 0) return _mm256_slli_epi16(a, -BY);
  else return a;
}
static inline V looked(V table, V codes) { return _mm256_shuffle_epi8(table, codes); }
static inline V table(const uint8_t* at) { return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)at)); }
static inline VF floats(V x) { return _mm256_cvtepi32_ps(x); }
static inline VF product(VF a, VF b) { return _mm256_mul_ps(a, b); }
static inline VF fma(VF a, VF b, VF c) { return _mm256_fmadd_ps(a, b, c); }
static inline VF all(float x) { return _mm256_set1_ps(x); }
static inline V times(V a, V b) { return _mm256_mullo_epi32(a, b); }
static inline V plus(V a, V b) { return _mm256_add_epi32(a, b); }
static inline V minus(V a, V b) { return _mm256_sub_epi32(a, b); }
static inline V shifted(V a, int by) { return _mm256_slli_epi32(a, by); }
#if defined __AVXVNNI__
const bool SPLITS = false;
static inline V dot(V c, V codes, V x) { return _mm256_dpbusd_avx_epi32(c, codes, x); }
static inline V pairs(V c, V a, V b) { return _mm256_dpwssd_avx_epi32(c, a, b); }
#elif defined __AVX512VNNI__
const bool SPLITS = false;
static inline V dot(V c, V codes, V x) { return _mm256_dpbusd_epi32(c, codes, x); }
static inline V pairs(V c, V a, V b) { return _mm256_dpwssd_epi32(c, a, b); }
#else
const bool SPLITS = true;
static inline V pairs(V c, V a, V b) { return _mm256_add_epi32(c, _mm256_madd_epi16(a, b)); }
#endif
#else
typedef __m512i V;
typedef __m512 VF;
const int LANES = 16;
const bool SPLITS = false;
static inline V load(const void* at) { return _mm512_loadu_si512(at); }
static inline VF loadf(const float* at) { return _mm512_loadu_ps(at); }
static inline void storef(float* at, VF x) { _mm512_storeu_ps(at, x); }
static inline V four(const uint8_t* at) { int32_t x; memcpy(&x, at, 4); return _mm512_set1_epi32(x); }
static inline V bytes(int x) { return _mm512_set1_epi8(x); }
static inline V both(V a, V b) { return _mm512_and_si512(a, b); }
static inline V any(V a, V b) { return _mm512_or_si512(a, b); }
template <int BY> static inline V right(V a) {
  if constexpr (BY > 0) return _mm512_srli_epi16(a, BY);
  else if constexpr (BY < 0) return _mm512_slli_epi16(a, -BY);
  else return a;
}
static inline V looked(V table, V codes) { return _mm512_shuffle_epi8(table, codes); }
static inline V table(const uint8_t* at) { return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)at)); }
static inline VF floats(V x) { return _mm512_cvtepi32_ps(x); }
static inline VF product(VF a, VF b) { return _mm512_mul_ps(a, b); }
static inline VF fma(VF a, VF b, VF c) { return _mm512_fmadd_ps(a, b, c); }
static inline VF all(float x) { return _mm512_set1_ps(x); }
static inline V times(V a, V b) { return _mm512_mullo_epi32(a, b); }
static inline V plus(V a, V b) { return _mm512_add_epi32(a, b); }
static inline V minus(V a, V b) { return _mm512_sub_epi32(a, b); }
static inline V shifted(V a, int by) { return _mm512_slli_epi32(a, by); }
static inline V dot(V c, V codes, V x) { return _mm512_dpbusd_epi32(c, codes, x); }
static inline V pairs(V c, V a, V b) { return _mm512_dpwssd_epi32(c, a, b); }
#endif

const int TOGETHER = LANES == 16 ? 8 : 4;  // rows whose sums stay in registers
const int STRAND_ROWS = LANES == 16 ? 2 : 0;  // up to which products are added up in strands
// The compiler would put the additions in another order, and then find no registers for them
#define KEEP(x) asm("" : "+x"(x))

// Codes of a quad of inputs; `high`: of split ones the upper four bits
struct Code { V low, high; };

// The fourth of a group's quads Q, of `lines` as they lie: of 4 bits two quads a line; the fifth and sixth bits behind them
template <int BITS, bool LOOKED, int Q>
static inline Code quad(V line, V more, V low_table, V high_table) {
  const V nibble = bytes(15);
  if constexpr (BITS == 8) {
    if constexpr (SPLITS) return {both(line, nibble), both(right<4>(line), nibble)};
    return {line, line};
  }
  V codes = both(Q % 2 ? right<4>(line) : line, nibble);
  if constexpr (BITS == 5) codes = any(codes, both(right<Q - 4>(more), bytes(16)));
  if constexpr (BITS == 6) codes = any(codes, both(right<2 * (Q % 4) - 4>(more), bytes(48)));
  if constexpr (LOOKED) return {looked(low_table, codes), SPLITS ? looked(high_table, codes) : codes};
  return {codes, codes};
}

// A record's head, decoded, of 16 outputs
struct alignas(64) Scales { float scale[8][16], low[8][16]; };
struct alignas(64) Wholes {
  int32_t a[16][16];  // by group, or by half group; without VNNI twice in a word, in 16 bits
  int32_t b[8][16];   // what sums of x are multiplied by, two in a word
  float half[16], low[16];  // low: of forms with two halves
};

struct Job {  // some groups of 16 outputs times rows of int8
  const uint8_t *weight, *x;
  i64 stride, count, ahead;  // count: groups. ahead: bytes from here to what will be wanted next; 0: nothing
  const float *of_rows, *by_rows;  // sums of x by group, `groups` a row; what its numbers are times
  i64 groups;
  const int16_t* wholes;     // the same, whole, as `b` meets them, `each` a row
  i64 each;
  const Scales* scales;
  const Wholes* by;
  bool lows;  // S and B apart; else S - (B << zero)
  int zero;
  const uint8_t *low_table, *high_table;
  float* sums;  // [rows][32]
};

enum Kind { BY_FLOATS, BY_GROUP, BY_HALF };  // what scales are: floats; whole numbers for each 32 inputs, or each 16

template <int BITS, bool LOOKED, Kind KIND, int ROWS, int WIDE>
INLINE void product_of(const Job& j, int first_row, int first_output, const i64 ahead) {
  const bool wide = BITS == 8 || LOOKED, split = SPLITS && wide, centred = SPLITS && KIND == BY_HALF;
  // quads of a group whose sums are added up before they are widened or scaled
#ifdef PACELINE_NARROW
  const int run = KIND == BY_HALF ? 4 : !SPLITS || wide || BITS == 4 ? 8 : 4;
#else
  const int run = KIND == BY_HALF || (KIND == BY_GROUP && BITS == 4 && !LOOKED) ? 4 : 8;
#endif
  // Few rows' products wait for one another: theirs are added up in strands, which are whole numbers and lose nothing
  constexpr int STRANDS = STRAND_ROWS >= ROWS ? 2 : 1;
  const uint8_t *w = j.weight + first_output * 4, *x = j.x + first_row * j.stride;
  const int16_t* of_x = j.wholes + first_row * j.each;
  float* sums = j.sums + first_row * 32 + first_output;
  const V low_table = LOOKED ? table(j.low_table) : V{}, high_table = LOOKED && SPLITS ? table(j.high_table) : V{};
  VF total[ROWS][WIDE];
  V sum[ROWS][WIDE];
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
    for (int i = 0; i < WIDE; i++) {
      if (KIND == BY_FLOATS) total[r][i] = loadf(sums + r * 32 + i * LANES);
      else sum[r][i] = V{};
    }
  for (i64 g = 0; g < j.count; g++, w += BITS * 64, x += 32) {
    V c[ROWS][WIDE], high[ROWS][WIDE], part[ROWS][WIDE], strand[ROWS][WIDE][STRANDS];
    auto step = [&](auto number) __attribute__((always_inline)) {
      constexpr int Q = number;
      if (ahead)  // evenly: of all at once many wait for one another
        for (int line = Q * BITS / 8; line < (Q + 1) * BITS / 8; line++) prefetch(w + line * 64 + ahead);
      Code codes[WIDE];
#pragma GCC unroll 2
      for (int i = 0; i < WIDE; i++) {
        const uint8_t* at = w + i * LANES * 4;
        V more{};
        if (BITS == 5) more = load(at + 4 * 64);
        if (BITS == 6) more = load(at + (4 + Q / 4) * 64);
        codes[i] = quad<BITS, LOOKED, Q>(load(at + (BITS == 8 ? Q : Q / 2) * 64), more, low_table, high_table);
      }
#pragma GCC unroll 8
      for (int r = 0; r < ROWS; r++) {
        const V four_x = four(x + r * j.stride + Q * 4);
#pragma GCC unroll 2
        for (int i = 0; i < WIDE; i++) {
#ifdef __aarch64__
          const V eight = wide ? (V)((uint8x16_t)codes[i].low ^ vdupq_n_u8(128)) : codes[i].low;
          c[r][i] = signed_dot(Q % run ? c[r][i] : V{}, eight, four_x);
          if (wide) high[r][i] = signed_dot(Q % run ? high[r][i] : V{}, bytes(1), four_x);
#elif defined PACELINE_NARROW && !defined __AVXVNNI__ && !defined __AVX512VNNI__
          V low_part = _mm256_maddubs_epi16(codes[i].low, four_x);
          if (centred && Q % run == 0)  // what 2^zero times x gives: the rest fits into 16 bits
            low_part = _mm256_sub_epi16(low_part, right<1 - BITS>(four((const uint8_t*)(of_x + r * j.each + 4 * g + Q / 2))));
          c[r][i] = Q % run ? _mm256_add_epi16(c[r][i], low_part) : low_part;
          KEEP(c[r][i]);
          if (split) {
            const V high_part = _mm256_maddubs_epi16(codes[i].high, four_x);
            high[r][i] = Q % run ? _mm256_add_epi16(high[r][i], high_part) : high_part;
            KEEP(high[r][i]);
          }
#else
          V& mine = strand[r][i][Q % STRANDS];
          mine = dot(Q % run >= STRANDS ? mine : V{}, codes[i].low, four_x);
          if ((Q + 1) % run == 0) c[r][i] = STRANDS == 1 ? mine : plus(strand[r][i][0], mine);
#endif
        }
      }
      if constexpr ((Q + 1) % run == 0) {
        const int32_t* by = KIND == BY_FLOATS ? nullptr : j.by->a[KIND == BY_HALF ? 2 * g + Q / 4 : g] + first_output;
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
          for (int i = 0; i < WIDE; i++) {
#ifdef __aarch64__
            if (wide) c[r][i] = plus(c[r][i], shifted(high[r][i], 7));
#endif
            if (KIND == BY_FLOATS) {
              if (SPLITS) {
#if defined PACELINE_NARROW && !defined __aarch64__
                const V ones = _mm256_set1_epi16(1);
                V now = _mm256_madd_epi16(c[r][i], ones);
                if (split) now = plus(now, shifted(_mm256_madd_epi16(high[r][i], ones), 4));
                part[r][i] = Q + 1 == run ? now : plus(part[r][i], now);
#endif
              } else part[r][i] = c[r][i];
              continue;
            }
            const V a = load(by + i * LANES);
            if (SPLITS) {
              sum[r][i] = pairs(sum[r][i], c[r][i], a);
              if (split) sum[r][i] = pairs(sum[r][i], high[r][i], right<-4>(a));
            } else if (LANES > 4 && KIND == BY_GROUP && BITS == 4 && !LOOKED && run == 4) sum[r][i] = pairs(sum[r][i], c[r][i], a);
            else sum[r][i] = plus(sum[r][i], times(c[r][i], a));
          }
      }
    };
#define QUAD(n) step(std::integral_constant<int, n>());
    QUAD(0) QUAD(1) QUAD(2) QUAD(3) QUAD(4) QUAD(5) QUAD(6) QUAD(7)
#undef QUAD
    if (KIND == BY_FLOATS)
#pragma GCC unroll 8
      for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
        for (int i = 0; i < WIDE; i++) {
          const VF y = product(floats(part[r][i]), loadf(j.scales->scale[g] + first_output + i * LANES));
          const VF of = fma(all(j.of_rows[(first_row + r) * j.groups + g]), loadf(j.scales->low[g] + first_output + i * LANES), y);
          total[r][i] = fma(of, all(j.by_rows[(first_row + r) * j.groups + g]), total[r][i]);
        }
  }
  if (KIND != BY_FLOATS) {
    const i64 lines = centred ? 0 : KIND == BY_HALF ? j.count : (j.count + 1) / 2;
    V low[ROWS][WIDE];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
      for (int i = 0; i < WIDE; i++) low[r][i] = V{};
    for (i64 n = 0; n < lines; n++)
#pragma GCC unroll 8
      for (int r = 0; r < ROWS; r++) {
        const V x_sum = four((const uint8_t*)(of_x + r * j.each + 2 * n));
#pragma GCC unroll 2
        for (int i = 0; i < WIDE; i++) low[r][i] = pairs(low[r][i], load(j.by->b[n] + first_output + i * LANES), x_sum);
      }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
      for (int i = 0; i < WIDE; i++) {
        VF y = floats(centred || j.lows ? sum[r][i] : minus(sum[r][i], shifted(low[r][i], j.zero)));
        y = product(y, loadf(j.by->half + first_output + i * LANES));
        if (!centred && j.lows) y = fma(floats(low[r][i]), loadf(j.by->low + first_output + i * LANES), y);
        storef(sums + r * 32 + i * LANES, fma(y, all(j.by_rows[(first_row + r) * j.groups]), loadf(sums + r * 32 + i * LANES)));
      }
    return;
  }
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
    for (int i = 0; i < WIDE; i++) storef(sums + r * 32 + i * LANES, total[r][i]);
}
#undef KEEP

// Sixteen outputs, of rows that stay in registers; up to two rows take two vectors at once where the registers are enough
template <int BITS, bool LOOKED, Kind KIND, int ROWS>
static void rows_of(const Job& j, int first_row) {
  constexpr int WIDE = LANES == 16 ? 1 : ROWS == 1 || (ROWS == 2 && !(BITS == 8 || LOOKED)) ? 2 : 1;
  for (int i = 0; i < 16; i += WIDE * LANES) product_of<BITS, LOOKED, KIND, ROWS, WIDE>(j, first_row, i, i ? 0 : j.ahead);
}

typedef void (*Product)(const Job&, int);

// By rows less one
template <int BITS, bool LOOKED, Kind KIND>
static const Product* products() {
  static const Product all[] = {
      rows_of<BITS, LOOKED, KIND, 1>, rows_of<BITS, LOOKED, KIND, 2>, rows_of<BITS, LOOKED, KIND, 3>, rows_of<BITS, LOOKED, KIND, 4>,
#if !defined PACELINE_NARROW
      rows_of<BITS, LOOKED, KIND, 5>, rows_of<BITS, LOOKED, KIND, 6>, rows_of<BITS, LOOKED, KIND, 7>, rows_of<BITS, LOOKED, KIND, 8>,
#endif
  };
  return all;
}

// Which of them multiplies a matrix
static const Product* products(i64 bits, bool looked, Kind kind) {
  if (kind == BY_HALF) return bits == 4 ? products<4, false, BY_HALF>() : products<6, false, BY_HALF>();
  if (looked) return kind == BY_GROUP ? products<4, true, BY_GROUP>() : products<4, true, BY_FLOATS>();
  if (kind == BY_GROUP) return bits == 4 ? products<4, false, BY_GROUP>() : products<5, false, BY_GROUP>();
  return bits == 4 ? products<4, false, BY_FLOATS>() : bits == 5 ? products<5, false, BY_FLOATS>() : products<8, false, BY_FLOATS>();
}

}  // namespace lanes
