// What the library is called with (native/structs.py says the same), and arithmetic on 16 numbers.
#pragma once

#include <sched.h>

#ifdef PACELINE_NARROW  // a CPU without AVX-512
#include "narrow.h"
const bool NARROW = true;
#else
#include <immintrin.h>
const bool NARROW = false;
#endif

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

typedef uint16_t bf16;
typedef int64_t i64;

// What multiplies rows by weights, and queries by keys: AVX-512 BF16, AMX, or, where the first takes longer, float32 products;
// or such of AVX2 or NEON
enum Unit { DOT, TILES, FUSED, SHORT };

extern "C" {

struct Linear {  // int8: `scale` of each output, `sums` of its weights. In groups: see grouped.h
  const uint8_t* weight;
  const float* scale;
  const int32_t* sums;
  const float* bias;
  i64 in, out, form, bits;
  i64 table, spread, power;  // in groups: 1, 2: codes are looked up; 2^spread groups share a scale; halves are times 2^power
};

struct Delta {  // what an adapter adds to a linear layer, in bfloat16; see lora.h
  const bf16 *down, *up;
  const int32_t* tile;
  i64 rank, in;
};

struct Norm {  // weight times sqrt(n), see Norm in model/blocks.py; null: the numbers as they are. bias: or null
  const float *weight, *bias;
};

struct Experts {  // see Experts in model/spec.py
  const float *router, *router_bias, *correction;  // [count][hidden], [count], [count]; the last two or null
  const Linear *gate_up, *down;                    // of each expert
  Linear shared_gate_up, shared_down;              // weight null: no expert that every row uses
  const float* shared_gate;                        // [hidden], or null
  i64 count, active, width, shared, sigmoid, normed, groups, active_groups, group_best;
  double scale, floor;
  i64* loads;                                      // [count + 1]: rows that each expert has had, and experts read; or null
};

enum Kind { CONVOLVED, DECAYED, DELTA };  // of a mixer with a state: a short convolution, Mamba-2, the gated delta rule

struct Recurrence {  // see model/recurrent.py. S of all heads is [heads][head_dim][key_dim]; the key of `group` serves heads / groups
  i64 kind, length, channels, record, width;  // width: of what the last product reads
  i64 heads, head_dim, groups, key_dim, tiled;
  i64 norm_groups, norm_rows, gate_first;
  double low, high;                     // limits of a time step
  const float *kernel, *conv_bias;      // [length][channels], the oldest first; [channels] or null
  const float *rate, *offset, *through; // [heads]; the last or null
  const float* norm;                    // [norm_rows][width / norm_groups], or null: gates alone
  float *const *tails, *const *matrices;  // of each place: [length - 1][channels], S
  float* records;                       // [places][record]
};

struct Layer {
  Linear qkv, value;  // of each kv head its queries and key, then the values of all, unless these are apart in `value`
  Linear out, gate_up, down;  // gate_up: 16 gates, their 16 ups, .., or ups alone
  Norm attention_norm, ffn_norm, attention_post, ffn_post;
  const float* head_norm;  // times sqrt(n), see Norm
  const float* turn;     // [position][cos, sin][rotated], the sines' first half negated, see Rotary
  i64 rotated, window;   // window: 0 for none
  const float* sinks;      // [heads]: scores that take a share and give nothing; or null
  const Experts* experts;  // null: one feed-forward part, gate_up and down; or, where these are null, too, none
  const Recurrence* recurrence;  // its projections are `qkv` and `out`; null: it attends
  i64 kept;                      // which of the layers that keep keys and values it is
};

enum Activation { SILU, GELU, SQUARED, CLAMPED };  // SQUARED: of what is above 0; CLAMPED: of gate and up together

struct Model {
  i64 layers, hidden, heads, kv_heads, head_dim, ffn, vocab, int8, block_size, threads, unit;  // int8: rows are; 2: weights lie in groups
  i64 activation, gated;
  i64 centred, joint, parallel;  // norms subtract the mean; q and k are normed over all heads; both parts of a layer read one norm
  double eps, attention_scale, attention_cap, logit_cap, embedding_scale;  // cap: 0 for none
  double residual_scale, logit_scale;
  const bf16* embedding;  // null: `lookup`, weights in groups
  Norm norm;
  Linear head, lookup;
  Linear narrow;    // the head's outputs `word` [words], ascending: a draft vocabulary; words 0: none
  const i64* word;
  i64 words, drafts;  // drafts: every pass has logits of these alone
  const Layer* layer;
  bf16 *keys, *values;  // or int8, if these are given:
  bf16 *key_scales, *value_scales;
  i64 bytes;
  i64 rank;                        // largest of a matrix's, of all adapters; a multiple of 16
  const Delta* const* adapters;    // by slot: [layers][5], or null; null: there are none
  double slope, limit;             // of CLAMPED
  i64 active, routed, shared;      // of all mixtures the most: experts of a row, inner numbers of one, of a shared one; 0: none
  i64 kept, gates;                 // layers that keep keys and values; is what a head attends to gated, by the last outputs of `qkv`?
  i64 projected, channels, scanned, coefficients;  // of all recurrences the most: outputs of `qkv`, channels, width, heads; 0: none
  bool tiles() const { return !NARROW && unit == TILES; }
  bool fused() const { return NARROW || unit == FUSED; }
  bool grouped() const { return int8 == 2; }
  bool whole() const { return int8 == 1; }
  i64 wide() const { return fused() ? 4 : 2; }  // bytes of a number that is multiplied, but for int8
};

enum Parts { ATTENDS = 1, FEEDS = 2, BEGINS = 4, SHARES = 8 };  // its attention, its feed-forward part; it begins a group; its
                                                                // attention reads the input of the group's first layer

struct Segment {  // a row's position is its place, the index of its slot in the text, less `shift`
  i64 start, given, nodes, base, shift, adapter;
  i64 first, hidden;  // its ranges among the pass's `hides`: slots that its rows do not see
};

struct ScanText {  // one text's rows as recurrences see them: `known` replayed ones, then its own, `given` and then candidates
  i64 begin, first, known, given, nodes;     // place of the state before them, -1: zeros; the first among all rows; counts
  i64 row, replay, node, anchor, anchors;    // its first own row; where its part of the arrays below begins; anchors
};

struct Scan {  // see Scan in model/state.py
  i64 texts, rows, kept;             // rows: with those that are replayed
  const ScanText* text;
  const i64 *replayed, *parent;      // places of records; parents of candidates among those of a text, -1: its last row before them
  const i64 *anchor, *place;         // rows of a text behind which the state is left, and where
  const i64 *keep, *record;          // own rows that leave a record, and where
};

struct Pass {
  i64 rows, segments, wanted, width, first, last, embed, head;  // layers first .. last; head: norm and logits behind them
  const i64 *token, *position, *slot, *word, *want, *table;
  const Segment* segment;
  float* hidden;      // [rows][hidden]: in where the pass does not begin with the embedding, and out; null: of no interest
  float** inputs;     // of each layer, copied out where not null; or null
  float *post_norm, *logits;
  double* seconds;    // by Part; or null
  const i64* parts;   // of each layer, bits of Parts; null: the whole of all layers
  const i64* hides;   // pairs: the first slot, and the one behind the last
  i64 narrow;         // logits of the draft vocabulary alone, where there is one
  const Scan* scan;   // of a model with recurrences
};
}

// The OpenMP runtime that torch has loaded, GNU's or LLVM's: both have these, whatever the compiler's own is
extern "C" {
int omp_get_thread_num();
int omp_get_num_threads();
void GOMP_parallel(void (*)(void*), void*, unsigned threads, unsigned flags);
}

// f() on each of `threads` threads
template <class F>
static void parallel(i64 threads, F f) {
  GOMP_parallel([](void* it) { (*(F*)it)(); }, &f, (unsigned)threads, 0);
}

// f(i) for every i below n, on at most `threads` threads
template <class F>
static void parallel(i64 threads, i64 n, F f) {
  parallel(std::max<i64>(1, std::min(threads, n)), [&] {
    const i64 me = omp_get_thread_num(), all = omp_get_num_threads();
    for (i64 i = n * me / all; i < n * (me + 1) / all; i++) f(i);
  });
}

enum Part { EMBED, NORM, LINEAR, ROPE, ATTENTION, HEAD };
const i64 MOST_LENGTH = 16;  // tokens that a convolution reads
const i64 QUERIES = 64;  // of one piece of attention, at most
const i64 SPAN = 1024;   // keys of one softmax, by absolute position; a longer text's are merged in their order
const i64 LINE = SPAN + 112;  // of scores: those of a span, then those of a tree as it lies; not a power of two

struct alignas(64) CacheLine { uint8_t bytes[64]; };
typedef std::vector<CacheLine> Room;  // memory that begins with a cache line

template <class T>
static T* room(Room& v, i64 n) {
  const size_t lines = (n * sizeof(T) + 63) / 64;
  if (v.size() < lines) Room().swap(v), v.resize(lines);  // what was there is not kept: never two at once
  return (T*)v.data();
}

const i64 NEAR = 32;  // groups of 16 slots that lie side by side, of each layer and head in turn

// Where a group of slots lies, of one head of those of all layers
static i64 place(i64 group, i64 head, i64 heads) { return (group / NEAR * heads + head) * NEAR + group % NEAR; }
static i64 up(i64 n, i64 to) { return (n + to - 1) / to * to; }
// To the second cache. A loop of _mm_prefetch does nothing in the compiler's eyes: GCC 12 leaves it out
#ifdef __aarch64__
static inline void prefetch(const void* at) { asm volatile("prfm pldl2keep, [%0]" ::"r"(at)); }
#else
static inline void prefetch(const void* at) { asm volatile("prefetcht1 (%0)" ::"r"(at)); }
#endif
static inline void fetch(const void* from, i64 bytes) {
  for (i64 i = 0; i < bytes; i += 64) prefetch((const uint8_t*)from + i);
}
// To be written soon
#ifdef __aarch64__
static inline void prefetchw(const void* at) { asm volatile("prfm pstl1keep, [%0]" ::"r"(at)); }
#else
static inline void prefetchw(const void* at) { asm volatile("prefetchw (%0)" ::"r"(at)); }
#endif
static __m512 set(float x) { return _mm512_set1_ps(x); }
// Of two numbers of which one is NaN, max and min give the second: so a bound comes first, and NaN stays
static __m512 larger(__m512 a, __m512 b) { return _mm512_max_ps(a, b); }
static __mmask16 below(i64 n) { return n >= 16 ? 0xffff : n <= 0 ? 0 : (__mmask16)((1 << n) - 1); }

// f(i, mask of the numbers that are there) for every 16 of n
template <class F>
static inline void each(i64 n, F f) {
  i64 i = 0;
  for (; i + 16 <= n; i += 16) f(i, (__mmask16)0xffff);
  if (i < n) f(i, below(n - i));
}

// f(what it was, i, mask) over n numbers, from `a` on, in four strands, as one alone waits for itself; then g of them
template <class F, class G>
static inline __m512 strands(i64 n, __m512 a, F f, G g) {
  __m512 b = a, c = a, d = a;
  i64 i = 0;
  for (; i + 64 <= n; i += 64)
    a = f(a, i, 0xffff), b = f(b, i + 16, 0xffff), c = f(c, i + 32, 0xffff), d = f(d, i + 48, 0xffff);
  for (; i < n; i += 16) a = f(a, i, below(n - i));
  return g(g(a, b), g(c, d));
}

#ifdef PACELINE_NARROW
static inline void transpose(__m512i x[16]) {  // 16 x 16 words of 32 bits
  for (int i = 0; i < 16; i++)
    for (int j = 0; j < i; j++) std::swap(x[i][j], x[j][i]);
}
#else
static inline void transpose(__m512i x[16]) {  // 16 x 16 words of 32 bits
  const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
#pragma GCC unroll 4
  for (int size = 1; size < 16; size *= 2) {  // swaps squares of this size on both sides of the diagonal
    const __mmask16 right = _mm512_test_epi32_mask(lane, _mm512_set1_epi32(size));
    const __m512i low = _mm512_mask_add_epi32(lane, right, lane, _mm512_set1_epi32(16 - size));
    const __m512i high = _mm512_mask_add_epi32(_mm512_add_epi32(lane, _mm512_set1_epi32(size)), right, lane, _mm512_set1_epi32(16));
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
      if (i & size) continue;
      const __m512i a = x[i], b = x[i + size];
      x[i] = _mm512_permutex2var_epi32(a, low, b), x[i + size] = _mm512_permutex2var_epi32(a, high, b);
    }
  }
}
#endif

// Without AVX-512 sixteen numbers are no register, and a call passes them through memory
#define INLINE static inline __attribute__((always_inline))

const float TO_2 = 1.44269504f;  // e^x = 2^(x * this)

INLINE __m512 exponential2(__m512 t) {  // 2^t
  const __m512 f = _mm512_reduce_ps(t, 1);  // t - floor(t); 2^f to 1e-7:
  __m512 p = set(1.86713e-3f);
  for (float c : {9.0170298e-3f, 5.57999127e-2f, 2.40164444e-1f, 6.93151295e-1f, 1.f}) p = _mm512_fmadd_ps(p, f, set(c));
  return _mm512_scalef_ps(p, t);
}

INLINE __m512 exponential(__m512 x) {  // stops at e^-87
  return exponential2(_mm512_max_ps(set(-126.f), _mm512_mul_ps(x, set(TO_2))));
}

INLINE __m512 sigmoid(__m512 x) {
  const __m512 d = _mm512_add_ps(set(1.f), exponential(_mm512_min_ps(set(87.f), _mm512_sub_ps(_mm512_setzero_ps(), x))));
  const __m512 r = _mm512_rcp14_ps(d);  // and one step of Newton's
  return _mm512_mul_ps(r, _mm512_fnmadd_ps(d, r, set(2.f)));
}

INLINE __m512 capped(__m512 x, float cap) {  // cap * tanh(x / cap)
  return _mm512_mul_ps(_mm512_fmsub_ps(set(2.f), sigmoid(_mm512_mul_ps(x, set(2.f / cap))), set(1.f)), set(cap));
}

INLINE __m512 clamped(__m512 gate, __m512 up, float slope, float limit) {  // (1 + up) gate sigmoid(slope gate), cut first
  gate = _mm512_min_ps(set(limit), gate), up = _mm512_max_ps(set(-limit), _mm512_min_ps(set(limit), up));
  return _mm512_mul_ps(_mm512_add_ps(up, set(1.f)), _mm512_mul_ps(gate, sigmoid(_mm512_mul_ps(gate, set(slope)))));
}

INLINE __m512 activated(__m512 x, i64 how) {
  if (how == SQUARED) x = _mm512_max_ps(_mm512_setzero_ps(), x);
  if (how == SQUARED) return _mm512_mul_ps(x, x);
  if (how == SILU) return _mm512_mul_ps(x, sigmoid(x));
  const __m512 cube = _mm512_mul_ps(_mm512_mul_ps(x, x), x);
  const __m512 u = _mm512_mul_ps(_mm512_fmadd_ps(cube, set(0.044715f), x), set(1.5957691216f));
  return _mm512_mul_ps(x, sigmoid(u));
}

// A load soon after gets the numbers from a plain store, and has to wait for a masked one
INLINE void put(float* to, __m512 x, __mmask16 mask) {
  if (mask == 0xffff) _mm512_storeu_ps(to, x);
  else _mm512_mask_storeu_ps(to, mask, x);
}

// Numbers i to i + 15 of a row that will be multiplied: as float32, or rounded to bfloat16
INLINE void keep(void* row, i64 i, bool floats, __m512 x, __mmask16 mask = 0xffff) {
  const __m256i narrow = (__m256i)_mm512_cvtneps_pbh(x);
  if (floats) put((float*)row + i, x, mask);
  else if (mask == 0xffff) _mm256_storeu_si256((__m256i*)((bf16*)row + i), narrow);
  else _mm256_mask_storeu_epi16((bf16*)row + i, mask, narrow);
}
