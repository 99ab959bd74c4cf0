// AMX in software, read before the sources: their tiles then run wherever AVX-512 does. As in Intel's manual: TDPBF16PS
// adds even and odd products apart, each rounded, without denormals; shapes that would trap stop the process.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace tiles {

struct Tile { alignas(64) uint8_t row[16][64]; };
struct Palette {
  uint8_t palette, start, reserved[14];
  uint16_t bytes[16];
  uint8_t rows[16];
};
static thread_local Palette shape{};
static thread_local Tile tile[8];

static void demand(bool legal, const char* what) {
  if (legal) return;
  fprintf(stderr, "Illegal use of tiles: %s.\n", what);
  abort();
}

static void there(int t) { demand(shape.palette == 1 && shape.rows[t] && shape.bytes[t], "one that is not configured"); }

static void configure(const void* from) {
  memcpy(&shape, from, sizeof shape);
  demand(shape.palette == 1 && shape.start == 0, "palette");
  for (uint8_t zero : shape.reserved) demand(zero == 0, "reserved bytes");
  for (int t = 0; t < 16; t++) demand(t < 8 ? shape.rows[t] <= 16 && shape.bytes[t] <= 64 : !shape.rows[t] && !shape.bytes[t], "size");
  memset(tile, 0, sizeof tile);
}

static void release() { shape = {}; }

static void zero(int t) { there(t), memset(&tile[t], 0, sizeof(Tile)); }

static void load(int t, const void* from, int64_t stride) {
  zero(t);
  for (int i = 0; i < shape.rows[t]; i++) memcpy(tile[t].row[i], (const uint8_t*)from + i * stride, shape.bytes[t]);
}

static void store(int t, void* to, int64_t stride) {
  there(t);
  for (int i = 0; i < shape.rows[t]; i++) memcpy((uint8_t*)to + i * stride, tile[t].row[i], shape.bytes[t]);
}

static void check(int c, int a, int b) {
  there(a), there(b), there(c);
  demand(a != b && b != c && a != c, "one tile twice in a product");
  demand(shape.rows[c] == shape.rows[a] && shape.bytes[c] == shape.bytes[b] && shape.bytes[a] == 4 * shape.rows[b], "a product of unlike shapes");
}

static void product_bf16(int c, int a, int b) {
  check(c, a, b);
  const unsigned before = _mm_getcsr();
  _mm_setcsr(0x9fc0);  // to nearest, denormals as zero in and out, no traps
  for (int i = 0; i < shape.rows[c]; i++) {
    __m512 even = _mm512_setzero_ps(), odd = even;
    for (int k = 0; k < shape.rows[b]; k++) {
      uint32_t pair;
      memcpy(&pair, tile[a].row[i] + 4 * k, 4);
      const __m512i left = _mm512_set1_epi32(pair), right = _mm512_load_si512(tile[b].row[k]), high = _mm512_set1_epi32(0xffff0000);
      even = _mm512_fmadd_ps((__m512)_mm512_slli_epi32(left, 16), (__m512)_mm512_slli_epi32(right, 16), even);
      odd = _mm512_fmadd_ps((__m512)_mm512_and_si512(left, high), (__m512)_mm512_and_si512(right, high), odd);
    }
    _mm512_store_ps(tile[c].row[i], _mm512_add_ps(_mm512_load_ps(tile[c].row[i]), _mm512_add_ps(even, odd)));
  }
  _mm_setcsr(before);
}

template <bool SIGNED>  // the bytes of b
static void product_int8(int c, int a, int b) {
  check(c, a, b);
  auto bytes = [](__m512i x, int up) {  // one of each pair, as 16 bits
    x = _mm512_slli_epi16(x, up);
    return SIGNED ? _mm512_srai_epi16(x, 8) : _mm512_srli_epi16(x, 8);
  };
  for (int i = 0; i < shape.rows[c]; i++) {
    __m512i sum = _mm512_load_si512(tile[c].row[i]);
    for (int k = 0; k < shape.rows[b]; k++) {
      uint32_t four;
      memcpy(&four, tile[a].row[i] + 4 * k, 4);
      const __m512i left = _mm512_set1_epi32(four), right = _mm512_load_si512(tile[b].row[k]);
      sum = _mm512_dpwssd_epi32(sum, _mm512_srai_epi16(left, 8), bytes(right, 0));
      sum = _mm512_dpwssd_epi32(sum, _mm512_srai_epi16(_mm512_slli_epi16(left, 8), 8), bytes(right, 8));
    }
    _mm512_store_si512(tile[c].row[i], sum);
  }
}

}  // namespace tiles

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stream_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#undef _tile_dpbssd
#undef _tile_dpbsud
#define _tile_loadconfig tiles::configure
#define _tile_release tiles::release
#define _tile_zero tiles::zero
#define _tile_loadd tiles::load
#define _tile_stream_loadd tiles::load
#define _tile_stored tiles::store
#define _tile_dpbf16ps tiles::product_bf16
#define _tile_dpbssd tiles::product_int8<true>
#define _tile_dpbsud tiles::product_int8<false>
