// AVX-512's operations on CPUs that lack it: sixteen numbers are two vectors of AVX2, or four of NEON. Names and results are
// Intel's, so that all else is written once; what takes time is written for these CPUs in narrow_product.h.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#ifdef __aarch64__
#include <arm_neon.h>
#define VECTOR 16
typedef uint8_t __m128i __attribute__((vector_size(16), aligned(1), may_alias));
typedef uint16_t __m256i __attribute__((vector_size(32), aligned(1), may_alias));
typedef uint16_t __mmask16;
typedef uint32_t __mmask32;
typedef struct { float f[8]; } __m256;
static inline void _mm_pause() { asm volatile("yield"); }
static inline __m128i _mm_loadu_si128(const __m128i* at) { return *at; }
static inline void _mm_storeu_si128(__m128i* at, __m128i x) { *at = x; }
static inline __m256i _mm256_loadu_si256(const __m256i* at) { return *at; }
static inline void _mm256_storeu_si256(__m256i* at, __m256i x) { *at = x; }
static inline __m128i _mm_set1_epi8(int x) { return __m128i{} + (uint8_t)x; }
static inline __m128i _mm_xor_si128(__m128i a, __m128i b) { return a ^ b; }
#else
#include <immintrin.h>
#define VECTOR 32
#endif

namespace narrow {

const int PARTS = 64 / VECTOR, EACH = VECTOR / 4;  // vectors of sixteen numbers, numbers of a vector
typedef float Floats __attribute__((vector_size(VECTOR)));
typedef int32_t Words __attribute__((vector_size(VECTOR)));
typedef uint32_t Naturals __attribute__((vector_size(VECTOR)));
typedef uint16_t Shorts __attribute__((vector_size(VECTOR)));
typedef uint64_t Longs __attribute__((vector_size(VECTOR)));
struct I;

struct F {
  Floats p[PARTS];
  F() = default;
  explicit F(const I& x);
  float& operator[](int i) { return ((float*)p)[i]; }
  float operator[](int i) const { return ((const float*)p)[i]; }
};

struct I {
  Words p[PARTS];
  I() = default;
  I(const F& x) {
    for (int i = 0; i < PARTS; i++) p[i] = (Words)x.p[i];
  }
  int32_t& operator[](int i) { return ((int32_t*)p)[i]; }
  int32_t operator[](int i) const { return ((const int32_t*)p)[i]; }
};

inline F::F(const I& x) {
  for (int i = 0; i < PARTS; i++) p[i] = (Floats)x.p[i];
}

// f(vector of each argument) of every part
#define EVERY _Pragma("GCC unroll 4") for (int i = 0; i < PARTS; i++)
#define OF_TWO(name, T, f) \
  static inline T name(const T& a, const T& b) { T y; EVERY { auto x = a.p[i], z = b.p[i]; y.p[i] = f; } return y; }
OF_TWO(add, F, x + z) OF_TWO(sub, F, x - z) OF_TWO(mul, F, x * z) OF_TWO(most, F, x > z ? x : z) OF_TWO(least, F, x < z ? x : z)
OF_TWO(add, I, x + z) OF_TWO(sub, I, x - z) OF_TWO(both, I, x & z) OF_TWO(any, I, x | z) OF_TWO(odd, I, x ^ z) OF_TWO(most, I, x > z ? x : z)
OF_TWO(add64, I, (Words)((Longs)x + (Longs)z)) OF_TWO(mul64, I, (Words)((Longs)x * (Longs)z))
#undef OF_TWO

static inline F set(float x) { F y; EVERY y.p[i] = Floats{} + x; return y; }
static inline I set(int32_t x) { I y; EVERY y.p[i] = Words{} + x; return y; }
static inline I set64(int64_t x) { I y; EVERY y.p[i] = (Words)(Longs{} + (uint64_t)x); return y; }
static inline I left(const I& a, int by) { I y; EVERY y.p[i] = a.p[i] << by; return y; }
static inline I right(const I& a, int by) { I y; EVERY y.p[i] = (Words)((Naturals)a.p[i] >> by); return y; }
static inline I right16(const I& a, int by) { I y; EVERY y.p[i] = (Words)((Shorts)a.p[i] >> by); return y; }
static inline I right64(const I& a, int by) { I y; EVERY y.p[i] = (Words)((Longs)a.p[i] >> by); return y; }
static inline I up_right(const I& a, int by) { I y; EVERY y.p[i] = a.p[i] >> by; return y; }
static inline F absolute(const F& a) { return F(both(I(a), set(0x7fffffff))); }
static inline F floats(const I& a) { F y; EVERY y.p[i] = __builtin_convertvector(a.p[i], Floats); return y; }

static inline Floats fused(Floats a, Floats b, Floats c) {
#ifdef __aarch64__
  return (Floats)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#endif
}
static inline Floats lower(Floats x) {
#ifdef __aarch64__
  return (Floats)vrndmq_f32((float32x4_t)x);
#else
  return (Floats)_mm256_floor_ps((__m256)x);
#endif
}
static inline F fma(const F& a, const F& b, const F& c) { F y; EVERY y.p[i] = fused(a.p[i], b.p[i], c.p[i]); return y; }
static inline F fms(const F& a, const F& b, const F& c) { F y; EVERY y.p[i] = fused(a.p[i], b.p[i], -c.p[i]); return y; }
static inline F fnm(const F& a, const F& b, const F& c) { F y; EVERY y.p[i] = fused(-a.p[i], b.p[i], c.p[i]); return y; }
static inline I whole(const F& x) {  // to the nearest
  I y;
#ifdef __aarch64__
  EVERY y.p[i] = (Words)vcvtnq_s32_f32((float32x4_t)x.p[i]);
#else
  EVERY y.p[i] = (Words)_mm256_cvtps_epi32((__m256)x.p[i]);
#endif
  return y;
}

// -- memory and masks -------------------------------------------------------------------------------------------------

// Vector by vector: of a memcpy of 64 bytes GCC makes moves of 16 to the stack, and the load of 32 that follows waits for them
typedef Words Loose __attribute__((aligned(1), may_alias));
template <class T>
static inline T load(const void* at) {
  T y;
  for (int i = 0; i < PARTS; i++) y.p[i] = (decltype(y.p[i] + y.p[i]))*(const Loose*)((const char*)at + i * VECTOR);
  return y;
}
template <class T>
static inline void store(void* at, const T& x) {
  for (int i = 0; i < PARTS; i++) *(Loose*)((char*)at + i * VECTOR) = (Words)x.p[i];
}

template <class T>
static inline T load(T y, __mmask16 k, const void* at) {
  if (k == 0xffff) return load<T>(at);
  for (int i = 0; i < 16; i++)
    if (k >> i & 1) memcpy((char*)&y + 4 * i, (const char*)at + 4 * i, 4);
  return y;
}
static inline void store(void* at, int bytes, uint32_t k, const void* x) {  // numbers of `bytes` bytes
  if (k == 0xffff) {
    memcpy(at, x, 16 * bytes);
    return;
  }
  for (int i = 0; k; i++, k >>= 1)
    if (k & 1) memcpy((char*)at + i * bytes, (const char*)x + i * bytes, bytes);
}
template <class T>
static inline void store(void* at, __mmask16 k, const T& x) {
  if (k == 0xffff) store(at, x);
  else store(at, 4, k, &x);
}
static inline I lanes(__mmask16 k) {  // all ones where there is one
  I y;
  for (int i = 0; i < 16; i++) y[i] = -(k >> i & 1);
  return y;
}
static inline F choose(__mmask16 k, const F& yes, const F& no) {
  if (k == 0xffff) return yes;
  const I of = lanes(k);
  F y;
  EVERY y.p[i] = of.p[i] ? yes.p[i] : no.p[i];
  return y;
}
template <class G>
static inline __mmask16 compare(const F& a, const F& b, G g) {
  __mmask16 k = 0;
  EVERY {
    const Words of = g(a.p[i], b.p[i]);
#ifdef __aarch64__
    for (int j = 0; j < EACH; j++) k |= (of[j] & 1) << (i * EACH + j);
#else
    k |= _mm256_movemask_ps((__m256)of) << (i * EACH);
#endif
  }
  return k;
}
template <int HOW>
static inline __mmask16 compare(const F& a, const F& b) {
  return compare(a, b, [](Floats x, Floats y) -> Words { return HOW == 3 ? (x != x) | (y != y) : HOW == 0 ? x == y : HOW == 18 ? x <= y : x > y; });
}
template <class G>
static inline float reduce(const F& a, G g) {  // in the order of AVX-512's: number i with i + 8, then i + 4, i + 2, i + 1
  typedef float Four __attribute__((vector_size(16)));
  Four y[4];
  memcpy(y, a.p, 64);
  const Four z = g(g(y[0], y[2]), g(y[1], y[3]));
  auto one = [&](float x, float y) { return g(Four{} + x, Four{} + y)[0]; };
  return one(one(z[0], z[2]), one(z[1], z[3]));
}
static inline float sum(const F& a) { return reduce(a, [](auto x, auto y) { return x + y; }); }
static inline float largest(const F& a) { return reduce(a, [](auto x, auto y) { return x > y ? x : y; }); }
static inline float smallest(const F& a) { return reduce(a, [](auto x, auto y) { return x < y ? x : y; }); }
static inline int sum(const I& a) {
  Words y = a.p[0];
  for (int i = 1; i < PARTS; i++) y += a.p[i];
  int all = 0;
  for (int i = 0; i < EACH; i++) all += y[i];
  return all;
}

// -- functions and other types ----------------------------------------------------------------------------------------

static inline F fraction(const F& t) {  // t - floor(t)
  F y;
  EVERY {
    const Floats f = t.p[i] - lower(t.p[i]), size = t.p[i] > 0 ? t.p[i] : -t.p[i];
    y.p[i] = size == INFINITY ? Floats{} : f;
  }
  return y;
}
static inline F scaled(const F& x, const F& t) {  // x 2^floor(t)
  const F bound = least(most(t, set(-252.f)), set(254.f));  // each factor below is a power of two
  F y;
  EVERY {
    const Words n = __builtin_convertvector(lower(bound.p[i]), Words), half = n >> 1;
    y.p[i] = x.p[i] * (Floats)((half + 127) << 23) * (Floats)((n - half + 127) << 23);
  }
  return y;
}
static inline F inverse(const F& x) { F y; EVERY y.p[i] = 1 / x.p[i]; return y; }
static inline F quotient(const F& a, const F& b) { F y; EVERY y.p[i] = a.p[i] / b.p[i]; return y; }

static inline I halved(const F& x) {  // bfloat16, rounded to nearest even, in the low half of each word
  I y;
  EVERY {
    const Naturals bits = (Naturals)x.p[i], rounded = bits + 0x7fff + (bits >> 16 & 1);
    y.p[i] = (Words)((x.p[i] == x.p[i] ? rounded : (bits | 0x400000)) >> 16);
  }
  return y;
}
template <class T, class U>
static inline T numbers(const U& x) {  // sixteen of them, of other widths
  T y;
  for (int i = 0; i < 16; i++) y[i] = x[i];
  return y;
}
struct Shorts16 { uint16_t at[16]; uint16_t& operator[](int i) { return at[i]; } };
struct Bytes16 { int8_t at[16]; int8_t& operator[](int i) { return at[i]; } };
template <class V, class T>
static inline V as(const T& x) { V y; static_assert(sizeof x == sizeof y, ""); memcpy(&y, &x, sizeof y); return y; }

static inline __m256i narrowed(const F& x) {
#ifdef __aarch64__
  return as<__m256i>(numbers<Shorts16>(halved(x)));
#else
  const I y = halved(x);
  return _mm256_permute4x64_epi64(_mm256_packus_epi32((__m256i)y.p[0], (__m256i)y.p[1]), 0xd8);
#endif
}
static inline I pairs(const F& high, const F& low) {
  I y;
  ((__m256i*)&y)[0] = narrowed(low), ((__m256i*)&y)[1] = narrowed(high);
  return y;
}
template <class T>
static inline I words(const void* x) {
  T of[16];
  memcpy(of, x, sizeof of);
  return numbers<I>(of);
}
#ifndef __aarch64__
template <>
inline I words<uint8_t>(const void* x) {
  const __m128i of = _mm_loadu_si128((const __m128i*)x);
  I y;
  y.p[0] = (Words)_mm256_cvtepu8_epi32(of), y.p[1] = (Words)_mm256_cvtepu8_epi32(_mm_unpackhi_epi64(of, of));
  return y;
}
template <>
inline I words<int8_t>(const void* x) {
  const __m128i of = _mm_loadu_si128((const __m128i*)x);
  I y;
  y.p[0] = (Words)_mm256_cvtepi8_epi32(of), y.p[1] = (Words)_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(of, of));
  return y;
}
template <>
inline I words<uint16_t>(const void* x) {
  I y;
  for (int i = 0; i < 2; i++) y.p[i] = (Words)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)x + i));
  return y;
}
#endif
static inline __m128i saturated(const I& x) {
#ifdef __aarch64__
  Bytes16 y;
  for (int i = 0; i < 16; i++) y[i] = x[i] < -128 ? -128 : x[i] > 127 ? 127 : x[i];
  return as<__m128i>(y);
#else
  const __m256i shorts = _mm256_permute4x64_epi64(_mm256_packs_epi32((__m256i)x.p[0], (__m256i)x.p[1]), 0xd8);
  return _mm_packs_epi16(_mm256_castsi256_si128(shorts), _mm256_extracti128_si256(shorts, 1));
#endif
}
static inline F of_halves(const __m256i& x) {  // float16
  F y;
#ifdef __aarch64__
  float16_t of[16];
  memcpy(of, &x, 32);
  for (int i = 0; i < 16; i++) y[i] = of[i];
#else
  y.p[0] = (Floats)_mm256_cvtph_ps(_mm256_castsi256_si128(x)), y.p[1] = (Floats)_mm256_cvtph_ps(_mm256_extracti128_si256(x, 1));
#endif
  return y;
}
static inline __m256 of_longs(const I& x) {  // of 0 to below 2^52
#ifndef __aarch64__
  auto four = [](const Words& of) {  // exact as float64
    const __m256d wide = (__m256d)((Longs)of | 0x4330000000000000ull);
    return _mm256_cvtpd_ps(_mm256_sub_pd(wide, _mm256_set1_pd(0x1p52)));
  };
  return _mm256_set_m128(four(x.p[1]), four(x.p[0]));
#else
  int64_t of[8];
  float y[8];
  memcpy(of, x.p, 64);
  for (int i = 0; i < 8; i++) y[i] = of[i];
  return as<__m256>(y);
#endif
}
static inline F insert(F x, __m256 y, int half) { memcpy((char*)&x + 32 * half, &y, 32); return x; }

}  // namespace narrow

#define __m512 narrow::F
#define __m512i narrow::I
#define _mm512_setzero_ps() narrow::set(0.f)
#define _mm512_set1_ps(x) narrow::set((float)(x))
#define _mm512_add_ps narrow::add
#define _mm512_sub_ps narrow::sub
#define _mm512_mul_ps narrow::mul
#define _mm512_max_ps narrow::most
#define _mm512_max_epi32 narrow::most
#define _mm512_min_ps narrow::least
#define _mm512_abs_ps narrow::absolute
#define _mm512_fmadd_ps narrow::fma
#define _mm512_fmsub_ps narrow::fms
#define _mm512_fnmadd_ps narrow::fnm
#define _mm512_rcp14_ps narrow::inverse
#define _mm512_reduce_ps(x, how) narrow::fraction(x)
#define _mm512_scalef_ps narrow::scaled
#define _mm512_loadu_ps(at) narrow::load<narrow::F>(at)
#define _mm512_load_ps(at) narrow::load<narrow::F>(at)
#define _mm512_storeu_ps(at, x) narrow::store(at, x)
#define _mm512_maskz_loadu_ps(k, at) narrow::load(narrow::set(0.f), k, at)
#define _mm512_mask_loadu_ps(x, k, at) narrow::load(x, k, at)
#define _mm512_mask_storeu_ps(at, k, x) narrow::store(at, k, x)
#define _mm512_maskz_mov_ps(k, x) narrow::choose(k, x, narrow::set(0.f))
#define _mm512_mask_add_ps(x, k, a, b) narrow::choose(k, narrow::add(a, b), x)
#define _mm512_mask_max_ps(x, k, a, b) narrow::choose(k, narrow::most(a, b), x)
#define _mm512_mask_div_ps(x, k, a, b) narrow::choose(k, narrow::quotient(a, b), x)
#define _mm512_cmp_ps_mask(a, b, how) narrow::compare<(how)>(a, b)
#define _mm512_mask_cmp_ps_mask(k, a, b, how) ((__mmask16)((k) & narrow::compare<(how)>(a, b)))
#define _mm512_reduce_add_ps(x) narrow::sum(x)
#define _mm512_reduce_max_ps(x) narrow::largest(x)
#define _mm512_reduce_min_ps(x) narrow::smallest(x)
#define _mm512_reduce_add_epi32(x) narrow::sum(x)
#define _mm512_cvtss_f32(x) (x)[0]
#define _mm512_castps_si512(x) narrow::I(x)
#define _mm512_castsi512_ps(x) narrow::F(x)
#define _mm512_cvtps_epi32 narrow::whole
#define _mm512_cvtepi32_ps narrow::floats
#define _mm512_cvtph_ps narrow::of_halves
#define _mm512_cvtneps_pbh narrow::narrowed
#define _mm512_cvtne2ps_pbh narrow::pairs
#define _mm512_setzero_si512() narrow::set(0)
#define _mm512_set1_epi32(x) narrow::set((int32_t)(x))
#define _mm512_set1_epi8(x) narrow::set((int32_t)((uint8_t)(x) * 0x01010101u))
#define _mm512_loadu_si512(at) narrow::load<narrow::I>(at)
#define _mm512_storeu_si512(at, x) narrow::store(at, x)
#define _mm512_store_si512(at, x) narrow::store(at, x)
#define _mm512_mask_storeu_epi32(at, k, x) narrow::store(at, k, x)
#define _mm512_mask_storeu_epi16(at, k, x) [&](void* to, const narrow::I& of) { narrow::store(to, 2, k, &of); }(at, x)
#define _mm256_mask_storeu_epi16(at, k, x) [&](void* to, const __m256i& of) { narrow::store(to, 2, k, &of); }(at, x)
#define _mm_mask_storeu_epi8(at, k, x) [&](void* to, const __m128i& of) { narrow::store(to, 1, k, &of); }(at, x)
#define _mm512_and_si512 narrow::both
#define _mm512_or_si512 narrow::any
#define _mm512_xor_si512 narrow::odd
#define _mm512_add_epi32 narrow::add
#define _mm512_sub_epi32 narrow::sub
#define _mm512_slli_epi32 narrow::left
#define _mm512_srli_epi32 narrow::right
#define _mm512_srai_epi32 narrow::up_right
#define _mm512_srli_epi16 narrow::right16
#define _mm512_cvtepu16_epi32(x) [](const __m256i& of) { return narrow::words<uint16_t>(&of); }(x)
#define _mm512_cvtepi8_epi32(x) [](const __m128i& of) { return narrow::words<int8_t>(&of); }(x)
#define _mm512_cvtepu8_epi32(x) [](const __m128i& of) { return narrow::words<uint8_t>(&of); }(x)
#define _mm512_cvtsepi32_epi8 narrow::saturated
#define _mm512_set1_epi64 narrow::set64
#define _mm512_add_epi64 narrow::add64
#define _mm512_mullo_epi64 narrow::mul64
#define _mm512_srli_epi64 narrow::right64
#define _mm512_set_epi64(a, b, c, d, e, f, g, h) [] { const int64_t of[] = {h, g, f, e, d, c, b, a}; return narrow::load<narrow::I>(of); }()
#define _mm512_cvtepi64_ps narrow::of_longs
#define _mm512_castps256_ps512(x) narrow::insert(narrow::set(0.f), x, 0)
#define _mm512_insertf32x8 narrow::insert
#ifndef _CMP_EQ_OQ
#define _CMP_EQ_OQ 0
#define _CMP_UNORD_Q 3
#define _CMP_LE_OQ 18
#define _CMP_GT_OQ 30
#endif
// There are no tiles
#define _tile_loadconfig(at)
#define _tile_release()
#define _tile_zero(t)
#define _tile_loadd(t, at, stride)
#define _tile_stream_loadd(t, at, stride)
#define _tile_stored(t, at, stride)
#define _tile_dpbf16ps(c, a, b)
#define _tile_dpbssd(c, a, b)
#define _tile_dpbsud(c, a, b)
