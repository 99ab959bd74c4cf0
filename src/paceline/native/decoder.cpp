// The decoder's forward pass on a CPU with AVX-512 BF16, or AMX where it is: one call a pass, no Python between layers.
// model/decoder.py is its slow twin.
//
// A row's result has the same bits whatever other rows are in the pass and however its text is cut into passes: linear
// layers add up over k in one order for any number of rows, and attention over keys by absolute position, 16 at a time,
// in spans of 1,024 that are merged in order.
//
//   linear weights  [out/32][in/step][2][16][16][e]   step = 32 bfloat16 (e = 2) or 64 int8 (e = 4): one tile of 16 outputs
//                                                     is 1 KB, read once for all rows
//   keys            [layer][kv head][slot/16][dim/2][16 slots][2]
//   values          [layer][kv head][slot/16][8 pairs of slots][dim][2]

#include <immintrin.h>
#include <omp.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

typedef uint16_t bf16;
typedef int64_t i64;

extern "C" {

struct Linear {  // int8: `scale` of each output, `sums` of its weights
  const uint8_t* weight;
  const float* scale;
  const int32_t* sums;
  const float* bias;
  i64 in, out;
};

struct Layer {
  Linear qkv, out, gate_up, down;  // qkv: of each kv head its queries, key and value; gate_up: 16 gates, their 16 ups, ..
  const float *attention_norm, *ffn_norm, *attention_post, *ffn_post, *head_norm;  // times sqrt(n), see Norm
  const float* turn;     // [position][cos, sin][rotated], the sines' first half negated, see Rotary
  i64 rotated, window;   // window: 0 for none
};

struct Model {
  i64 layers, hidden, heads, kv_heads, head_dim, ffn, vocab, gelu, int8, block_size, groups, threads, amx;
  double eps, attention_scale, attention_cap, logit_cap, embedding_scale;  // cap: 0 for none
  const bf16* embedding;
  const float* norm;
  Linear head;
  const Layer* layer;
  bf16 *keys, *values;
};

struct Segment {
  i64 start, given, nodes, base;
};

struct Pass {
  i64 rows, segments, wanted, width, first, last, embed;
  const i64 *token, *position, *slot, *word, *want, *table;
  const Segment* segment;
  float* hidden;      // [rows][hidden]: in where the pass does not begin with the embedding, and always out
  float** inputs;     // of each layer, copied out where not null; or null
  float *post_norm, *logits;
  double* seconds;    // by Part; or null
};
}

enum Part { EMBED, NORM, LINEAR, ROPE, ATTENTION, HEAD };
const i64 QUERIES = 64;  // of one piece of attention, at most
const i64 SPAN = 1024;   // keys of one softmax, by absolute position; a longer text's are merged in their order
const i64 LINE = SPAN + 16;  // of scores: not a power of two

static i64 up(i64 n, i64 to) { return (n + to - 1) / to * to; }
static __m512 set(float x) { return _mm512_set1_ps(x); }
static __mmask16 below(i64 n) { return n >= 16 ? 0xffff : n <= 0 ? 0 : (__mmask16)((1 << n) - 1); }

// f(i, mask of the numbers that are there) for every 16 of n
template <class F>
static inline void each(i64 n, F f) {
  i64 i = 0;
  for (; i + 16 <= n; i += 16) f(i, (__mmask16)0xffff);
  if (i < n) f(i, below(n - i));
}

static __m512 exponential(__m512 x) {  // stops at e^-87
  const __m512 t = _mm512_max_ps(_mm512_mul_ps(x, set(1.44269504f)), set(-126.f));
  const __m512 f = _mm512_reduce_ps(t, 1);  // t - floor(t); 2^f to 1e-7:
  __m512 p = set(1.86713e-3f);
  for (float c : {9.0170298e-3f, 5.57999127e-2f, 2.40164444e-1f, 6.93151295e-1f, 1.f}) p = _mm512_fmadd_ps(p, f, set(c));
  return _mm512_scalef_ps(p, t);
}

static __m512 sigmoid(__m512 x) {
  const __m512 d = _mm512_add_ps(set(1.f), exponential(_mm512_min_ps(_mm512_sub_ps(_mm512_setzero_ps(), x), set(87.f))));
  const __m512 r = _mm512_rcp14_ps(d);  // and one step of Newton's
  return _mm512_mul_ps(r, _mm512_fnmadd_ps(d, r, set(2.f)));
}

static __m512 capped(__m512 x, float cap) {  // cap * tanh(x / cap)
  return _mm512_mul_ps(_mm512_fmsub_ps(set(2.f), sigmoid(_mm512_mul_ps(x, set(2.f / cap))), set(1.f)), set(cap));
}

static __m512 activated(__m512 x, bool gelu) {
  if (!gelu) return _mm512_mul_ps(x, sigmoid(x));
  const __m512 cube = _mm512_mul_ps(_mm512_mul_ps(x, x), x);
  const __m512 u = _mm512_mul_ps(_mm512_fmadd_ps(cube, set(0.044715f), x), set(1.5957691216f));
  return _mm512_mul_ps(x, sigmoid(u));
}

static void store_narrow(bf16* to, __m512 x, __mmask16 mask = 0xffff) {
  _mm256_mask_storeu_epi16(to, mask, (__m256i)_mm512_cvtneps_pbh(x));
}

// -- tiles ------------------------------------------------------------------------------------------------------------

// Registers 0-3 are sums, 4 and 5 rows of the left side, 6 and 7 blocks of the right. Attention's shares (5) and values
// (7) hold 16 slots, half the depth of a tile.
struct __attribute__((packed)) Config {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};
};

struct Tiles {  // this thread's configuration; set again only when it changes
  i64 rows = 0;
  bool attention = false;
  void set(i64 count, bool for_attention) {
    if (rows == count && attention == for_attention) return;
    rows = count, attention = for_attention;
    Config config;
    for (int i = 0; i < 8; i++) config.bytes[i] = 64, config.rows[i] = i < 6 ? count : 16;
    if (attention) config.bytes[5] = 32, config.rows[7] = 8;
    _tile_loadconfig(&config);
  }
};

struct Activations {  // rows of bfloat16, or of int8 with a scale each; columns padded with zeros to whole steps
  uint8_t* data;
  float* scale;
  i64 stride;  // bytes
};

// sums (float or int32) [16 rows][32 outputs of the block w], and another such square after it: of rows 16 to 31 where
// x2 is given, of the same rows and the block w2 where that is
template <bool INT8>
static void block_amx(const uint8_t* w, const uint8_t* w2, const uint8_t* x, const uint8_t* x2, i64 stride, i64 steps, bool fetch, float* sums) {
#define FENCE asm volatile("" ::: "memory")  // the tile intrinsics do not say that they touch memory
#define STEP(a, b, c) \
  if (INT8) { _tile_dpbssd(c, a, b); } else { _tile_dpbf16ps(c, a, b); }
#define AHEAD(w) \
  for (int q = 0; q < 2048; q += 64) _mm_prefetch((const char*)w + ahead + q, _MM_HINT_T1);
  FENCE;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (i64 k = 0; k < steps; k++) {
    const i64 ahead = w2 && k + 4 >= steps ? 8192 + steps * 2048 : 8192;  // beyond a block of two are the next two
    _tile_loadd(4, x + k * 64, stride);
    _tile_stream_loadd(6, w + k * 2048, 64);
    _tile_stream_loadd(7, w + k * 2048 + 1024, 64);
    if (fetch) { AHEAD(w + k * 2048) }
    STEP(4, 6, 0)
    STEP(4, 7, 1)
    if (x2) {
      _tile_loadd(5, x2 + k * 64, stride);
      STEP(5, 6, 2)
      STEP(5, 7, 3)
    } else if (w2) {
      _tile_stream_loadd(6, w2 + k * 2048, 64);
      _tile_stream_loadd(7, w2 + k * 2048 + 1024, 64);
      AHEAD(w2 + k * 2048)
      STEP(4, 6, 2)
      STEP(4, 7, 3)
    }
  }
  _tile_stored(0, sums, 128);
  _tile_stored(1, sums + 16, 128);
  if (x2 || w2) {
    _tile_stored(2, sums + 16 * 32, 128);
    _tile_stored(3, sums + 16 * 32 + 16, 128);
  }
  FENCE;
#undef STEP
#undef AHEAD
}

template <bool INT8, int ROWS>
static void rows_avx(const uint8_t* w, const uint8_t* x, i64 stride, i64 steps, const int32_t* sums, __m512i* out) {
  __m512i c[ROWS][2];
  for (int r = 0; r < ROWS; r++) {
    c[r][0] = c[r][1] = _mm512_setzero_si512();
    if (INT8)  // x is offset to be unsigned
      for (int t = 0; t < 2; t++) c[r][t] = _mm512_slli_epi32(_mm512_sub_epi32(c[r][t], _mm512_loadu_si512(sums + 16 * t)), 7);
  }
  for (i64 k = 0; k < steps; k++, w += 2048)
    for (int pair = 0; pair < 16; pair++) {
      const __m512i w0 = _mm512_loadu_si512(w + pair * 64), w1 = _mm512_loadu_si512(w + 1024 + pair * 64);
      _mm_prefetch((const char*)w + 4096 + pair * 64, _MM_HINT_T0);
      _mm_prefetch((const char*)w + 5120 + pair * 64, _MM_HINT_T0);
      for (int r = 0; r < ROWS; r++) {
        uint32_t four;
        memcpy(&four, x + r * stride + k * 64 + pair * 4, 4);
        if (INT8) {
          const __m512i a = _mm512_set1_epi32(four ^ 0x80808080u);
          c[r][0] = _mm512_dpbusd_epi32(c[r][0], a, w0), c[r][1] = _mm512_dpbusd_epi32(c[r][1], a, w1);
        } else {
          const __m512bh a = (__m512bh)_mm512_set1_epi32(four);
          c[r][0] = (__m512i)_mm512_dpbf16_ps((__m512)c[r][0], a, (__m512bh)w0);
          c[r][1] = (__m512i)_mm512_dpbf16_ps((__m512)c[r][1], a, (__m512bh)w1);
        }
      }
    }
  for (int r = 0; r < ROWS; r++) out[2 * r] = c[r][0], out[2 * r + 1] = c[r][1];
}

template <bool INT8>
static void block_avx(const uint8_t* w, const uint8_t* x, i64 stride, i64 steps, i64 rows, const int32_t* sums, __m512i* out) {
  i64 r = 0;
#define ROWS(n) \
  for (; rows - r >= n; r += n) rows_avx<INT8, n>(w, x + r * stride, stride, steps, sums, out + 2 * r);
  ROWS(8) ROWS(4) ROWS(2) ROWS(1)
#undef ROWS
}

// -- one thread's view of a pass ----------------------------------------------------------------------------------------

// Of attention: queries [first, last) of a segment under one kv head, over some spans. Where other spans of theirs are
// other pieces, it is a `part`, and one of these joins `join` parts. work: about what it costs
struct Piece {
  i64 segment, head, first, last, span, spans, join, work;
  bool part;
};

struct Buffers {
  float *x, *wide;
  bf16* query;
  float* parts;  // [queries][spans][top, sum, .., 16 + dims]
  i64 spans = 0;
  Activations normed, mixed, gated;
  std::vector<Piece> pieces;
  std::vector<char> chain;  // of each segment: do its candidates follow one another?
};

struct Scratch {  // of one thread
  std::vector<float> out, row;
  std::vector<bf16> gathered;
  std::vector<const bf16*> keys, values;
};

template <class T>
static T* room(std::vector<T>& v, i64 n) {
  if ((i64)v.size() < n) v.resize(n);
  return v.data();
}

struct Worker {
  const Model& m;
  const Pass& p;
  Buffers& b;
  i64 me, all;
  Scratch& s;
  Tiles tiles{};
  i64 mine[2] = {0, 0};  // pieces of attention
  std::chrono::steady_clock::time_point since = std::chrono::steady_clock::now();

  void share(i64 total, i64& first, i64& last) const { first = total * me / all, last = total * (me + 1) / all; }

  void done(Part part) {  // everybody has finished this part
#pragma omp barrier
    if (p.seconds && me == 0) {
      const auto now = std::chrono::steady_clock::now();
      p.seconds[part] += std::chrono::duration<double>(now - since).count();
      since = now;
    }
  }

  // sink(row, first column, 16 sums, the next 16 sums), after scale and bias
  template <class Sink>
  void linear(const Linear& l, const Activations& a, i64 rows, Sink sink) {
    if (rows == 0) return;
    const i64 steps = up(l.in, m.int8 ? 64 : 32) / (m.int8 ? 64 : 32);
    alignas(64) float sums[32 * 32];
    auto finish = [&](i64 block, i64 row, i64 count, const float* from) {
      __m512 scale[2] = {}, bias[2] = {};
      for (int t = 0; t < 2; t++) {
        if (m.int8) scale[t] = _mm512_loadu_ps(l.scale + block * 32 + t * 16);
        if (l.bias) bias[t] = _mm512_loadu_ps(l.bias + block * 32 + t * 16);
      }
      for (i64 r = 0; r < count; r++) {
        __m512 y[2] = {_mm512_load_ps(from + r * 32), _mm512_load_ps(from + r * 32 + 16)};
        for (int t = 0; t < 2; t++)
          if (m.int8) {
            const __m512 by = _mm512_mul_ps(set(a.scale[row + r]), scale[t]);
            y[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_castps_si512(y[t])), by, bias[t]);
          } else if (l.bias) y[t] = _mm512_add_ps(y[t], bias[t]);
        sink(row + r, block * 32, y[0], y[1]);
      }
    };
    const auto amx = m.int8 ? block_amx<true> : block_amx<false>;
    i64 first, last;
    share(up(l.out, 32) / 32, first, last);
    if (m.amx) tiles.set(std::min<i64>(rows, 16), false);
    // 512 KB of weights for all panels of 32 rows: the weights stay in the second cache, a panel in the first
    const i64 group = std::max<i64>(2, (512 << 10) / (steps * 2048) / 2 * 2);
    for (; first < last; first += group)
      for (i64 row = 0; row < rows; row += 32)
        for (i64 block = first; block < std::min(first + group, last); block++) {
          const uint8_t *w = l.weight + block * steps * 2048, *x = a.data + row * a.stride;
          const i64 count = std::min<i64>(rows - row, 32);
          if (m.amx && rows <= 16 && block + 1 < last) {
            amx(w, w + steps * 2048, x, nullptr, a.stride, steps, true, sums);
            finish(block, 0, rows, sums);
            finish(++block, 0, rows, sums + 16 * 32);
            continue;
          }
          if (m.amx) amx(w, nullptr, x, count > 16 ? x + 16 * a.stride : nullptr, a.stride, steps, row == 0, sums);
          else if (m.int8) block_avx<true>(w, x, a.stride, steps, count, l.sums + block * 32, (__m512i*)sums);
          else block_avx<false>(w, x, a.stride, steps, count, nullptr, (__m512i*)sums);
          finish(block, row, count, sums);
        }
  }

  void store(const Linear& l, const Activations& a, i64 rows, float* y, i64 width, float cap = 0) {
    linear(l, a, rows, [=](i64 row, i64 column, __m512 y0, __m512 y1) {
      if (cap > 0) y0 = capped(y0, cap), y1 = capped(y1, cap);
      float* to = y + row * width + column;
      _mm512_mask_storeu_ps(to, below(width - column), y0);
      _mm512_mask_storeu_ps(to + 16, below(width - column - 16), y1);
    });
  }

  void add(const Linear& l, const Activations& a, i64 rows, float* x, i64 width) {
    linear(l, a, rows, [=](i64 row, i64 column, __m512 y0, __m512 y1) {
      float* to = x + row * width + column;
      const __mmask16 m0 = below(width - column), m1 = below(width - column - 16);
      _mm512_mask_storeu_ps(to, m0, _mm512_add_ps(_mm512_maskz_loadu_ps(m0, to), y0));
      _mm512_mask_storeu_ps(to + 16, m1, _mm512_add_ps(_mm512_maskz_loadu_ps(m1, to + 16), y1));
    });
  }

  // -- rows -------------------------------------------------------------------------------------------------------------

  // RMS norm of x into y; they may be the same
  void norm(const float* x, const float* weight, i64 n, float* y) const {
    __m512 sum = _mm512_setzero_ps();
    each(n, [&](i64 i, __mmask16 k) {
      const __m512 v = _mm512_maskz_loadu_ps(k, x + i);
      sum = _mm512_fmadd_ps(v, v, sum);
    });
    const __m512 factor = set(1.f / std::sqrt(_mm512_reduce_add_ps(sum) + n * (float)m.eps));
    each(n, [&](i64 i, __mmask16 k) {
      const __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(k, x + i), _mm512_maskz_loadu_ps(k, weight + i));
      _mm512_mask_storeu_ps(y + i, k, _mm512_mul_ps(v, factor));
    });
  }

  void pack(const float* x, i64 n, const Activations& a, i64 row) const {
    uint8_t* to = a.data + row * a.stride;
    if (!m.int8) {
      each(n, [&](i64 i, __mmask16 k) { store_narrow((bf16*)to + i, _mm512_maskz_loadu_ps(k, x + i), k); });
      return;
    }
    __m512 most = _mm512_setzero_ps();
    each(n, [&](i64 i, __mmask16 k) { most = _mm512_max_ps(most, _mm512_abs_ps(_mm512_maskz_loadu_ps(k, x + i))); });
    const float scale = _mm512_reduce_max_ps(most) / 127.f;
    a.scale[row] = scale;
    const __m512 inverse = set(scale > 0 ? 1.f / scale : 0.f);
    each(n, [&](i64 i, __mmask16 k) {
      const __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_maskz_loadu_ps(k, x + i), inverse));
      _mm_mask_storeu_epi8(to + i, k, _mm512_cvtsepi32_epi8(q));
    });
  }

  void norm_rows(const float* x, const float* weight, i64 rows, const i64* which, float* copy) {
    const i64 n = m.hidden;
    float* y = room(s.row, up(n, 16));
    i64 first, last;
    share(rows, first, last);
    for (i64 r = first; r < last; r++) {
      norm(x + (which ? which[r] : r) * n, weight, n, y);
      if (copy) memcpy(copy + r * n, y, n * 4);
      pack(y, n, b.normed, r);
    }
  }

  void pack_rows(const float* x, i64 width, const Activations& a) {
    i64 first, last;
    share(p.rows, first, last);
    for (i64 r = first; r < last; r++) pack(x + r * width, width, a, r);
  }

  void add_normed(const float* y, const float* weight) {  // x += norm(y)
    const i64 n = m.hidden;
    float* z = room(s.row, up(n, 16));
    i64 first, last;
    share(p.rows, first, last);
    for (i64 r = first; r < last; r++) {
      norm(y + r * n, weight, n, z);
      for (i64 i = 0; i < n; i++) b.x[r * n + i] += z[i];
    }
  }

  void embed() {
    i64 first, last;
    share(p.rows, first, last);
    for (i64 r = first; r < last; r++)
      for (i64 i = 0; i < m.hidden; i++) {
        const uint32_t bits = (uint32_t)m.embedding[p.token[r] * m.hidden + i] << 16;
        float value;
        memcpy(&value, &bits, 4);
        b.x[r * m.hidden + i] = value * (float)m.embedding_scale;
      }
  }

  // -- attention ----------------------------------------------------------------------------------------------------------

  i64 dims() const { return up(m.head_dim, 32); }
  i64 group() const { return m.heads / m.kv_heads; }
  bf16* pool(bf16* all, i64 layer, i64 head, i64 at) const {
    return all + ((layer * m.kv_heads + head) * m.groups + at) * 16 * dims();
  }

  void turn(float* x, const Layer& l, i64 position) const {
    const i64 half = l.rotated / 2;
    const float *cosines = l.turn + position * 2 * l.rotated, *sines = cosines + l.rotated + half;
    for (i64 i = 0; i < half; i += 16) {
      const __mmask16 k = below(half - i);
      const __m512 a = _mm512_maskz_loadu_ps(k, x + i), c = _mm512_maskz_loadu_ps(k, x + half + i);
      const __m512 cos = _mm512_maskz_loadu_ps(k, cosines + i), sin = _mm512_maskz_loadu_ps(k, sines + i);
      _mm512_mask_storeu_ps(x + i, k, _mm512_fmsub_ps(a, cos, _mm512_mul_ps(c, sin)));
      _mm512_mask_storeu_ps(x + half + i, k, _mm512_fmadd_ps(c, cos, _mm512_mul_ps(a, sin)));
    }
  }

  // A head as bfloat16, padded with zeros to whole tiles
  void narrow(const float* x, bf16* to) const {
    for (i64 d = 0; d < dims(); d += 16) store_narrow(to + d, _mm512_maskz_loadu_ps(below(m.head_dim - d), x + d));
  }

  // Head norms and rotation of the rows' q and k; queries to their buffer, keys and values to their slots
  void rope(const Layer& l, i64 layer) {
    const i64 n = m.head_dim, width = (m.heads + 2 * m.kv_heads) * n;
    i64 first, last;
    share(p.rows * m.kv_heads, first, last);
    for (i64 i = first; i < last; i++) {
      const i64 row = i % p.rows, head = i / p.rows;
      float* line = b.wide + row * width + head * (group() + 2) * n;
      for (i64 g = 0; g < group(); g++) {
        float* q = line + g * n;
        if (l.head_norm) norm(q, l.head_norm + (head * group() + g) * n, n, q);
        turn(q, l, p.position[row]);
        narrow(q, b.query + ((head * p.rows + row) * group() + g) * dims());
      }
      float *k = line + group() * n, *v = k + n;
      if (l.head_norm) norm(k, l.head_norm + (m.heads + head) * n, n, k);
      turn(k, l, p.position[row]);
      const i64 at = p.slot[row] / 16, lane = p.slot[row] % 16;
      bf16 *keys = pool(m.keys, layer, head, at), *values = pool(m.values, layer, head, at);
      bf16* line16 = room(s.gathered, dims());
      narrow(k, line16);
      for (i64 d = 0; d < dims(); d += 2) memcpy(keys + (d / 2 * 16 + lane) * 2, line16 + d, 4);
      narrow(v, line16);
      for (i64 d = 0; d < dims(); d += 16) {
        const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)(line16 + d)));
        _mm512_mask_storeu_epi16(values + (lane / 2 * dims() + d) * 2, 0x55555555u << lane % 2, lane % 2 ? _mm512_slli_epi32(wide, 16) : wide);
      }
    }
  }

  i64 slot(i64 segment, i64 position) const {
    return p.table[segment * p.width + position / m.block_size] * m.block_size + position % m.block_size;
  }

  // Sixteen keys and values side by side, from any slots; -1: none
  void gather(i64 layer, i64 head, const i64* slots, bf16* keys, bf16* values) const {
    alignas(64) i64 from[16];
    __mmask16 some = 0;
    for (i64 j = 0; j < 16; j++)
      if (slots[j] >= 0) some |= 1 << j, from[j] = (i64)(pool(m.keys, layer, head, slots[j] / 16) + slots[j] % 16 * 2);
    const __m512i low = _mm512_load_si512(from), high = _mm512_load_si512(from + 8);
    for (i64 d = 0; d < dims(); d += 2) {
      const bf16* at = (const bf16*)0 + d * 16;
      const __m256i none = _mm256_setzero_si256();
      _mm256_storeu_si256((__m256i*)(keys + d * 16), _mm512_mask_i64gather_epi32(none, (__mmask8)some, low, at, 1));
      _mm256_storeu_si256((__m256i*)(keys + d * 16 + 16), _mm512_mask_i64gather_epi32(none, some >> 8, high, at, 1));
    }
    for (i64 j = 0; j < 16; j++) {
      const bf16* v = slots[j] < 0 ? nullptr : pool(m.values, layer, head, slots[j] / 16) + slots[j] % 16 / 2 * dims() * 2;
      for (i64 d = 0; d < dims(); d += 16) {
        __m512i two = v ? _mm512_loadu_si512(v + d * 2) : _mm512_setzero_si512();
        if (slots[j] % 2 == 0) two = _mm512_slli_epi32(two, 16);
        if (j % 2 == 0) two = _mm512_srli_epi32(two, 16);
        _mm512_mask_storeu_epi16(values + (j / 2 * dims() + d) * 2, 0x55555555u << j % 2, two);
      }
    }
  }

  // scores [rows][LINE], 16 keys wide, of `rows` <= 16 queries
  void score(const bf16* query, i64 rows, const bf16* keys, float* scores) const {
    if (m.amx) {
      FENCE;
      _tile_zero(0);
      for (i64 d = 0; d < dims(); d += 32) {
        _tile_loadd(4, query + d, dims() * 2);
        _tile_loadd(6, keys + d * 16, 64);
        _tile_dpbf16ps(0, 4, 6);
      }
      _tile_stored(0, scores, LINE * 4);
      FENCE;
      return;
    }
    for (i64 r = 0; r < rows; r++) {
      __m512 sum = _mm512_setzero_ps();
      for (i64 d = 0; d < dims(); d += 2) {
        int32_t two;
        memcpy(&two, query + r * dims() + d, 4);
        sum = _mm512_dpbf16_ps(sum, (__m512bh)_mm512_set1_epi32(two), (__m512bh)_mm512_loadu_si512(keys + d * 16));
      }
      _mm512_storeu_ps(scores + r * LINE, sum);
    }
  }

  // out [rows][dims] += shares [rows][LINE] of 16 slots a group times their values
  void mix(const bf16* shares, i64 rows, const bf16* const* values, i64 groups, float* out) const {
    for (i64 d = 0; m.amx && d < dims(); d += 64) {
      const bool four = d + 32 < dims();
      float* to = out + d;
      FENCE;
      _tile_loadd(0, to, dims() * 4);
      _tile_loadd(1, to + 16, dims() * 4);
      if (four) {
        _tile_loadd(2, to + 32, dims() * 4);
        _tile_loadd(3, to + 48, dims() * 4);
      }
      for (i64 g = 0; g < groups; g++) {
        const bf16* v = values[g] + d * 2;
        _tile_loadd(5, shares + g * 16, LINE * 2);
        _tile_loadd(7, v, dims() * 4);
        _tile_dpbf16ps(0, 5, 7);
        _tile_loadd(7, v + 32, dims() * 4);
        _tile_dpbf16ps(1, 5, 7);
        if (!four) continue;
        _tile_loadd(7, v + 64, dims() * 4);
        _tile_dpbf16ps(2, 5, 7);
        _tile_loadd(7, v + 96, dims() * 4);
        _tile_dpbf16ps(3, 5, 7);
      }
      _tile_stored(0, to, dims() * 4);
      _tile_stored(1, to + 16, dims() * 4);
      if (four) {
        _tile_stored(2, to + 32, dims() * 4);
        _tile_stored(3, to + 48, dims() * 4);
      }
      FENCE;
    }
    for (i64 d = 0; !m.amx && d < dims(); d += 32)
      for (i64 r = 0; r < rows; r++) {
        float* to = out + r * dims() + d;
        __m512 y0 = _mm512_loadu_ps(to), y1 = _mm512_loadu_ps(to + 16);
        for (i64 g = 0; g < groups; g++)
          for (i64 pair = 0; pair < 8; pair++) {
            int32_t two;
            memcpy(&two, shares + r * LINE + g * 16 + pair * 2, 4);
            const __m512bh a = (__m512bh)_mm512_set1_epi32(two);
            const bf16* v = values[g] + (pair * dims() + d) * 2;
            y0 = _mm512_dpbf16_ps(y0, a, (__m512bh)_mm512_loadu_si512(v));
            y1 = _mm512_dpbf16_ps(y1, a, (__m512bh)_mm512_loadu_si512(v + 32));
          }
        _mm512_storeu_ps(to, y0), _mm512_storeu_ps(to + 16, y1);
      }
  }

  // Softmax over positions [lo, hi) of a query's scores, which begin at `origin`: its sum, and what it is relative to.
  // Shares elsewhere: 0
  float softmax(float* scores, bf16* shares, i64 width, i64 origin, i64 lo, i64 hi, float& top) const {
    const i64 first = std::min(lo / 16 * 16 - origin, width), last = lo < hi ? up(hi, 16) - origin : first;
    auto seen = [=](i64 i) -> __mmask16 {
      const i64 at = origin + i;
      return at >= lo && at + 16 <= hi ? 0xffff : below(hi - at) & ~below(lo - at);
    };
    float scale = (float)m.attention_scale;
    if (m.attention_cap > 0) {
      for (i64 i = first; i < last; i += 16)
        _mm512_storeu_ps(scores + i, capped(_mm512_mul_ps(_mm512_loadu_ps(scores + i), set(scale)), (float)m.attention_cap));
      scale = 1;
    }
    __m512 most = set(-INFINITY), sum = _mm512_setzero_ps();
    for (i64 i = first; i < last; i += 16) most = _mm512_mask_max_ps(most, seen(i), most, _mm512_loadu_ps(scores + i));
    top = _mm512_reduce_max_ps(most) * scale;
    if (first > 0) memset(shares, 0, first * 2);
    for (i64 i = first; i < last; i += 16) {
      const __m512 x = _mm512_fmsub_ps(_mm512_loadu_ps(scores + i), set(scale), set(top));
      const __m512 e = _mm512_maskz_mov_ps(seen(i), exponential(x));
      sum = _mm512_add_ps(sum, e);
      store_narrow(shares + i, e);
    }
    if (last < width) memset(shares + last, 0, (width - last) * 2);
    return _mm512_reduce_add_ps(sum);
  }

  struct Mixed {  // of one query: its values' sum, weighted by e^(score - top)
    float top, sum, *out;
  };

  void merge(Mixed& a, const Mixed& b) const {
    if (b.sum == 0) return;
    if (a.sum == 0) {
      a.top = b.top, a.sum = b.sum, memcpy(a.out, b.out, dims() * 4);
      return;
    }
    const float top = std::max(a.top, b.top);
    const __m512 x = exponential(set(a.top - top)), y = exponential(set(b.top - top));
    for (i64 d = 0; d < dims(); d += 16)
      _mm512_storeu_ps(a.out + d, _mm512_fmadd_ps(_mm512_loadu_ps(b.out + d), y, _mm512_mul_ps(_mm512_loadu_ps(a.out + d), x)));
    a.sum = a.sum * _mm512_cvtss_f32(x) + b.sum * _mm512_cvtss_f32(y);
    a.top = top;
  }

  // Queries of a piece by row, clipped to [low, high)
  void of(const Piece& piece, i64 row, i64 low, i64 high, i64& from, i64& to) const {
    from = std::max(row * group() - piece.first, low), to = std::min((row + 1) * group() - piece.first, high);
  }

  void attend(const Piece& piece, i64 layer, const Layer& l) {
    const i64 count = piece.last - piece.first;
    float* out = room(s.out, (QUERIES + 16) * dims());
    float *fresh = out + QUERIES * dims(), *where = out;
    Mixed all[QUERIES];
    for (i64 q = 0; q < count; q++, where += dims()) all[q] = {0, 0, where};
    for (i64 span = piece.span; span < piece.span + piece.spans; span++) attend(piece, layer, l, span, fresh, all);
    for (i64 q = 0; q < count; q++) {
      if (!piece.part) finish(piece, q, all[q]);
      else {
        float* to = part(piece, q, piece.span);
        to[0] = all[q].top, to[1] = all[q].sum, memcpy(to + 16, all[q].out, dims() * 4);
      }
    }
  }

  float* part(const Piece& piece, i64 q, i64 span) const {
    const i64 query = (piece.head * p.rows + p.segment[piece.segment].start) * group() + piece.first + q;
    return b.parts + (query * b.spans + span) * (16 + dims());
  }

  void join(const Piece& piece) {  // the spans of its queries, in order
    for (i64 q = 0; q < piece.last - piece.first; q++) {
      Mixed all = {0, 0, room(s.out, dims())};
      for (i64 span = piece.span; span < piece.span + piece.join; span++) {
        float* from = part(piece, q, span);
        merge(all, {from[0], from[1], from + 16});
      }
      finish(piece, q, all);
    }
  }

  void finish(const Piece& piece, i64 q, const Mixed& it) const {
    const i64 query = piece.first + q, row = p.segment[piece.segment].start + query / group();
    const i64 column = (piece.head * group() + query % group()) * m.head_dim;
    for (i64 d = 0; d < m.head_dim; d += 16) {
      const __m512 y = _mm512_mul_ps(_mm512_loadu_ps(it.out + d), set(1.f / it.sum));
      const __mmask16 k = below(m.head_dim - d);
      if (m.int8) _mm512_mask_storeu_ps(b.wide + row * m.heads * m.head_dim + column + d, k, y);
      else store_narrow((bf16*)(b.mixed.data + row * b.mixed.stride) + column + d, y, k);
    }
  }

  // One span. Keys of a segment up to group `own` (of 16 positions) are the same for all its rows; from there on each
  // row of a tree that is not a chain gathers its own path, so that its keys too lie by position.
  void attend(const Piece& piece, i64 layer, const Layer& l, i64 span, float* fresh, Mixed* all) {
    const Segment& seg = p.segment[piece.segment];
    const i64 count = piece.last - piece.first, size = 16 * dims();
    const i64 row0 = piece.first / group(), row1 = (piece.last - 1) / group() + 1;
    auto position = [&](i64 row) { return p.position[seg.start + row]; };
    auto begin = [&](i64 row) { return l.window ? std::max<i64>(0, position(row) - l.window + 1) : 0; };
    i64 lo = INT64_MAX, hi = 0;
    for (i64 r = row0; r < row1; r++) lo = std::min(lo, begin(r)), hi = std::max(hi, position(r) + 1);
    lo = std::max(lo, span * SPAN), hi = std::min(hi, span * SPAN + SPAN);
    if (lo >= hi) return;
    const i64 origin = lo / 16, groups = up(hi, 16) / 16 - origin;
    const i64 own = b.chain[piece.segment] ? groups : std::max<i64>(0, std::min((seg.base + seg.given) / 16 - origin, groups));
    auto tail = [&](i64 row) { return std::max<i64>(0, up(std::min(position(row) + 1, hi), 16) / 16 - origin - own); };

    const bool paged = m.block_size % 16 == 0;
    i64 copies = paged ? 0 : own;
    for (i64 r = row0; r < row1; r++) copies += tail(r);
    bf16* copy = room(s.gathered, copies * 2 * size);
    const bf16 **keys = room(s.keys, own + copies), **values = room(s.values, own + copies);
    i64 slots[16], n = 0;
    for (; n < own; n++) {
      const i64 at = (origin + n) * 16;
      if (paged) {
        const i64 place = slot(piece.segment, at) / 16;
        keys[n] = pool(m.keys, layer, piece.head, place), values[n] = pool(m.values, layer, piece.head, place);
        continue;
      }
      for (i64 j = 0; j < 16; j++) slots[j] = at + j < hi ? slot(piece.segment, at + j) : -1;
      gather(layer, piece.head, slots, copy, copy + size);
      keys[n] = copy, values[n] = copy + size, copy += 2 * size;
    }
    for (i64 r = row0; r < row1; r++)
      for (i64 t = 0; t < tail(r); t++, n++, copy += 2 * size) {
        path(seg, piece.segment, r, (origin + own + t) * 16, slots);
        gather(layer, piece.head, slots, copy, copy + size);
        keys[n] = copy, values[n] = copy + size;
      }

    const bf16* query = b.query + ((piece.head * p.rows + seg.start) * group() + piece.first) * dims();
    alignas(64) float scores[16 * LINE];
    alignas(64) bf16 shares[16 * LINE];
    Mixed some[16];
    for (i64 q = 0; q < count; q += 16) {
      const i64 here = std::min<i64>(count - q, 16);
      // f(queries from, to; their first key, and how many after `own`) for each row with keys of its own
      auto tails = [&](auto f) {
        i64 from, to, first = own;
        for (i64 r = row0; r < row1; first += tail(r), r++) {
          of(piece, r, q, q + here, from, to);
          if (from >= to || !tail(r)) continue;
          if (m.amx) tiles.set(to - from, true);
          f(from - q, to - from, first, tail(r));
        }
      };
      if (m.amx) tiles.set(here, true);
      for (i64 g = 0; g < own; g++) {
        for (i64 line = 0; line < size && q == 0; line += 32) {
          _mm_prefetch((const char*)(keys[std::min(g + 3, n - 1)] + line), _MM_HINT_T0);
          _mm_prefetch((const char*)(values[g] + line), _MM_HINT_T1);
        }
        score(query + q * dims(), here, keys[g], scores + g * 16);
      }
      tails([&](i64 from, i64 rows, i64 first, i64 many) {
        for (i64 t = 0; t < many; t++)
          score(query + (q + from) * dims(), rows, keys[first + t], scores + from * LINE + (own + t) * 16);
      });
      bool none = true;  // none of these queries has met a key before
      for (i64 i = 0; i < here; i++) none &= all[q + i].sum == 0;
      float* to = none ? all[q].out : fresh;
      for (i64 i = 0; i < here; i++) {
        const i64 r = (piece.first + q + i) / group();
        some[i].out = to + i * dims();
        some[i].sum = softmax(scores + i * LINE, shares + i * LINE, groups * 16, origin * 16, std::max(begin(r), lo),
                              std::min(position(r) + 1, hi), some[i].top);
      }
      memset(to, 0, here * dims() * 4);
      if (m.amx) tiles.set(here, true);
      mix(shares, here, values, own, to);
      tails([&](i64 from, i64 rows, i64 first, i64 many) {
        mix(shares + from * LINE + own * 16, rows, values + first, many, to + from * dims());
      });
      for (i64 i = 0; i < here; i++) {
        if (none) all[q + i] = some[i];
        else merge(all[q + i], some[i]);
      }
    }
  }

  // Slots of the keys at positions at .. at + 16 on a row's path: its prefix, then its ancestors by depth; -1 beyond it
  void path(const Segment& seg, i64 segment, i64 row, i64 at, i64* slots) const {
    const i64 end = seg.base + seg.given, last = p.position[seg.start + row];
    for (i64 j = 0; j < 16; j++) slots[j] = at + j <= last && at + j < end ? slot(segment, at + j) : -1;
    if (row < seg.given) return;
    for (uint64_t word = (uint64_t)p.word[seg.start + row]; word; word &= word - 1) {
      const i64 ancestor = seg.start + seg.given + __builtin_ctzll(word), j = p.position[ancestor] - at;
      if (j >= 0 && j < 16) slots[j] = p.slot[ancestor];
    }
  }

  // -- the pass -------------------------------------------------------------------------------------------------------------

  void layer(i64 index) {
    const Layer& l = m.layer[index];
    const i64 rows = p.rows;
    norm_rows(b.x, l.attention_norm, rows, nullptr, nullptr);
    done(NORM);
    store(l.qkv, b.normed, rows, b.wide, l.qkv.out);
    done(LINEAR);
    rope(l, index);
    done(ROPE);
    for (i64 i = mine[0]; i < mine[1]; i++) attend(b.pieces[i], index, l);
    done(ATTENTION);
    if (b.spans > 0) {
      for (i64 i = mine[0]; i < mine[1]; i++)
        if (b.pieces[i].join) join(b.pieces[i]);
      done(ATTENTION);
    }
    if (m.int8) {
      pack_rows(b.wide, m.heads * m.head_dim, b.mixed);
      done(NORM);
    }
    contribute(l.out, b.mixed, l.attention_post);
    norm_rows(b.x, l.ffn_norm, rows, nullptr, nullptr);
    done(NORM);
    const bool gelu = m.gelu, int8 = m.int8;  // copies, so that the loops below keep them in registers
    const i64 width = m.ffn;
    const Activations a = b.gated;
    float* y = b.wide;
    linear(l.gate_up, b.normed, rows, [=](i64 row, i64 column, __m512 gate, __m512 raised) {
      const __m512 h = _mm512_mul_ps(activated(gate, gelu), raised);
      const __mmask16 k = below(width - column / 2);
      if (int8) _mm512_mask_storeu_ps(y + row * width + column / 2, k, h);
      else store_narrow((bf16*)(a.data + row * a.stride) + column / 2, h, k);
    });
    done(LINEAR);
    if (int8) {
      pack_rows(y, width, a);
      done(NORM);
    }
    contribute(l.down, b.gated, l.ffn_post);
  }

  void contribute(const Linear& l, const Activations& a, const float* post) {  // x += post(l(a))
    if (!post) {
      add(l, a, p.rows, b.x, m.hidden);
      done(LINEAR);
      return;
    }
    store(l, a, p.rows, b.wide, m.hidden);
    done(LINEAR);
    add_normed(b.wide, post);
    done(NORM);
  }

  void run() {
    i64 before = 0, total = 0;
    for (const Piece& piece : b.pieces) total += piece.work;
    for (const Piece& piece : b.pieces) {
      const i64 middle = before + piece.work / 2;
      mine[0] += middle * all / total < me, mine[1] += middle * all / total <= me;
      before += piece.work;
    }
    if (p.embed) embed();
    done(EMBED);
    for (i64 i = p.first; i < p.last; i++) {
      if (p.inputs && p.inputs[i] && me == 0) memcpy(p.inputs[i], b.x, p.rows * m.hidden * 4);
      if (p.inputs && p.inputs[i]) done(EMBED);
      layer(i);
    }
    if (p.last == m.layers) {
      if (p.post_norm) {
        norm_rows(b.x, m.norm, p.rows, nullptr, p.post_norm);
        done(NORM);
      }
      norm_rows(b.x, m.norm, p.wanted, p.want, nullptr);
      done(NORM);
      store(m.head, b.normed, p.wanted, p.logits, m.vocab, (float)m.logit_cap);
      done(HEAD);
    }
    if (m.amx) _tile_release();
  }
};

// -- doors ------------------------------------------------------------------------------------------------------------------

struct Arena {  // one per calling thread; grows to the largest pass
  std::vector<uint8_t> memory;
  size_t used = 0;
  uint8_t* take(size_t bytes) {
    used = (used + 63) / 64 * 64;
    uint8_t* at = memory.empty() ? nullptr : memory.data() + used;
    used += bytes;
    return at;
  }
};

static void lay_out(Arena& arena, const Model& m, const Pass& p, Buffers& b) {
  const i64 rows = up(p.rows, 32), dims = up(m.head_dim, 32), group = m.heads / m.kv_heads;
  const i64 mixed = m.heads * m.head_dim, widest = std::max({(m.heads + 2 * m.kv_heads) * m.head_dim, m.hidden, m.ffn});
  auto activations = [&](i64 width) {
    Activations a;
    a.stride = m.int8 ? up(width, 64) : up(width, 32) * 2;
    a.data = arena.take(rows * a.stride);
    a.scale = (float*)arena.take(rows * 4);
    return a;
  };
  arena.used = 64;
  b.x = p.hidden;
  b.wide = (float*)arena.take(rows * widest * 4);
  b.query = (bf16*)arena.take((m.kv_heads * p.rows * group + 16) * dims * 2);
  b.parts = (float*)arena.take(m.heads * p.rows * b.spans * (16 + dims) * 4);
  b.normed = activations(m.hidden), b.mixed = activations(mixed), b.gated = activations(m.ffn);
  if (arena.memory.size() >= arena.used)  // padding that nobody writes must be finite
    for (const Activations& a : {b.normed, b.mixed, b.gated})
      for (i64 r = 0; r < rows; r++) memset(a.data + (r + 1) * a.stride - 64, 0, 64);
}

// Asks the system for tiles: ARCH_REQ_XCOMP_PERM, tile data. 0: granted.
extern "C" int paceline_permit_tiles() { return (int)syscall(SYS_arch_prctl, 0x1023, 18); }

static thread_local Arena arena;

static void make_room(const Model& m, const Pass& p, Buffers& b) {
  lay_out(arena, m, p, b);
  if (arena.used + 64 > arena.memory.size()) arena.memory.assign(arena.used + 64, 0);
  lay_out(arena, m, p, b);
}

// Pieces by head, as `linear` shares out its columns and `rope` its rows: a thread then finds most in its own cache
static void plan(const Model& m, const Pass& p, Buffers& b) {
  const i64 group = m.heads / m.kv_heads;
  const bool few = p.rows * m.heads <= 4 * QUERIES * m.threads;  // small pieces, so that all threads have some
  const i64 queries = few ? 16 : QUERIES;
  for (i64 s = 0; s < p.segments; s++) {
    const Segment& seg = p.segment[s];
    bool chain = true;
    for (i64 j = 0; j < seg.nodes; j++)
      chain &= (uint64_t)p.word[seg.start + seg.given + j] == (j == 63 ? ~0ull : (1ull << (j + 1)) - 1);
    b.chain.push_back(chain);
  }
  i64 window = 0;  // the widest; 0: some layer sees everything
  for (i64 i = p.first; i < p.last; i++) {
    if (!m.layer[i].window) { window = 0; break; }
    window = std::max(window, m.layer[i].window);
  }
  for (i64 head = 0; head < m.kv_heads; head++)
    for (i64 s = 0; s < p.segments; s++) {
      const Segment& seg = p.segment[s];
      for (i64 q = 0, n = (seg.given + seg.nodes) * group; q < n; q += queries) {
        const i64 last = std::min(q + queries, n), panels = up(last - q, 16) / 16;
        i64 lo = INT64_MAX, hi = 0;
        for (i64 r = q / group; r <= (last - 1) / group; r++) {
          const i64 at = p.position[seg.start + r];
          lo = std::min(lo, window ? std::max<i64>(0, at - window + 1) : 0), hi = std::max(hi, at + 1);
        }
        const i64 from = lo / SPAN, to = up(hi, SPAN) / SPAN, each = few ? 1 : to - from;
        for (i64 span = from; span < to; span += each) {
          const i64 keys = std::min(hi, (span + each) * SPAN) - span * SPAN;
          const bool part = to - from > each;
          b.pieces.push_back({s, head, q, last, span, each, part && span == from ? to - from : 0, panels * (64 + keys), part});
          if (part) b.spans = std::max(b.spans, to);
        }
      }
    }
}

static void forward(const Model& m, const Pass& p) {
  Buffers b;
  plan(m, p, b);
  make_room(m, p, b);
#pragma omp parallel num_threads(m.threads)
  {
    static thread_local Scratch scratch;
    Worker{m, p, b, omp_get_thread_num(), omp_get_num_threads(), scratch}.run();
  }
}

extern "C" void paceline_forward(const Model* m, const Pass* p) { forward(*m, *p); }

// -- draws --------------------------------------------------------------------------------------------------------------

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
static i64 race(const float* x, i64 n, double temperature, uint64_t key, std::vector<float>& bounds) {
  float top;
  if (largest(x, n, top) < 0 || top == INFINITY) return -1;
  float* bound = room(bounds, up(n, 16));
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

extern "C" void paceline_winners(const float* x, i64 rows, i64 width, i64* winners) {
  float top;
  for (i64 r = 0; r < rows; r++) winners[r] = largest(x + r * width, width, top);
}

// Winners of rows of log-probabilities x [rows][width]
extern "C" void paceline_race(const float* x, i64 rows, i64 width, const i64* keys, i64 threads, i64* winners) {
#pragma omp parallel for schedule(static) num_threads(std::min(threads, rows))
  for (i64 r = 0; r < rows; r++) {
    static thread_local std::vector<float> bounds;
    winners[r] = race(x + r * width, width, 1, keys[r], bounds);
  }
}

// A chain of drafts for each request: the pass `p`, which wants one row of each segment, then up to `steps` - 1 passes of
// one row each. keys, tokens [requests][steps]; temperature 0: greedy. A chain ends when the chance that all of it is
// kept falls below `worth`; a greedy token's chance is its probability, another's is `share`. `tokens` beyond its end: -1.
extern "C" void paceline_draft(const Model* m, const Pass* p, i64 steps, const i64* most, const double* temperature,
                               const i64* keys, double worth, double share, i64* tokens) {
  const i64 n = p->segments, vocab = m->vocab;
  std::vector<i64> live(n), token(n), position(n), slot(n), word(n, 0), want(n), table(n * p->width);
  std::vector<double> chance(n, 1.);
  std::vector<Segment> segment(n);
  std::vector<float> hidden(n * m->hidden);
  for (i64 i = 0; i < n; i++) live[i] = want[i] = i;
  std::fill(tokens, tokens + n * steps, -1);
  Pass pass = *p;
  for (i64 step = 0; step < steps && !live.empty(); step++) {
    forward(*m, pass);
    const i64 count = live.size();
#pragma omp parallel for schedule(static) num_threads(std::min(m->threads, count))
    for (i64 r = 0; r < count; r++) {
      static thread_local std::vector<float> bounds;
      const i64 i = live[r];
      const float* z = p->logits + r * vocab;
      if (temperature[i] > 0) {
        tokens[i * steps + step] = race(z, vocab, temperature[i], keys[i * steps + step], bounds);
        chance[i] *= share;
        continue;
      }
      float top;
      tokens[i * steps + step] = largest(z, vocab, top);
      __m512 sum = _mm512_setzero_ps();
      each(vocab, [&](i64 c, __mmask16 k) {
        sum = _mm512_mask_add_ps(sum, k, sum, exponential(_mm512_sub_ps(_mm512_maskz_loadu_ps(k, z + c), set(top))));
      });
      chance[i] /= _mm512_reduce_add_ps(sum);
    }
    i64 kept = 0;
    for (i64 r = 0; r < count; r++) {
      const i64 i = live[r], drawn = tokens[i * steps + step];
      if (drawn < 0 || chance[i] < worth || step + 1 >= most[i]) continue;
      const Segment& first = p->segment[i];
      const i64 at = first.base + first.given + step;
      live[kept] = i, token[kept] = drawn, position[kept] = at, segment[kept] = {kept, 1, 0, at};
      slot[kept] = p->table[i * p->width + at / m->block_size] * m->block_size + at % m->block_size;
      memcpy(&table[kept * p->width], p->table + i * p->width, p->width * 8);
      kept++;
    }
    live.resize(kept);
    pass.rows = pass.segments = pass.wanted = kept;
    pass.token = token.data(), pass.position = position.data(), pass.slot = slot.data(), pass.word = word.data();
    pass.want = want.data(), pass.table = table.data(), pass.segment = segment.data(), pass.hidden = hidden.data();
  }
}

// One layer alone: `head` of a model that has nothing else, from x [rows][in] to y [rows][out]
extern "C" void paceline_linear(const Model* m, const float* x, i64 rows, float* y) {
  Model alone = *m;
  alone.hidden = m->head.in, alone.heads = alone.kv_heads = alone.head_dim = alone.ffn = 1;
  Pass p = {};
  p.rows = rows;
  Buffers b;
  make_room(alone, p, b);
#pragma omp parallel num_threads(m->threads)
  {
    static thread_local Scratch scratch;
    Worker w{alone, p, b, omp_get_thread_num(), omp_get_num_threads(), scratch};
    w.pack_rows(x, m->head.in, b.normed);
    w.done(NORM);
    w.store(m->head, b.normed, rows, y, m->head.out);
    if (m->amx) _tile_release();
  }
}
