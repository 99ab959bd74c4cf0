// Weights of 4 or 8 bits in groups of 32 along the input: weight = scale * code + low, the code unsigned, scale and low of
// each output and group. model/grouped.py packs them and is the slow twin.
//
// A block of 32 outputs is a chain of records of 8 groups, the last of what is left: first what scales and lows are made of
// (`Form`), [group][32 outputs] each; then the codes of 16 outputs, then those of the other 16, [group][4 inputs][output][4]. Of
// 4 bits a byte holds two codes, 4 inputs apart.
//
// Rows are int8 with a scale each. The sum of a group is a whole number, exact, whatever multiplies; and the order of
// groups is fixed: so a row has the same bits on every CPU that adds up floats alike.
#pragma once

#include "product.h"

const i64 GROUP = 32, RECORD = 8;

// What scale and low are made of:      bits a weight of 4:
enum Form {
  WHOLE,   // no groups: bfloat16, or int8 with a scale for each output
  ZEROS,   // half h, byte z:                 h, -h z                        4.75
  PAIRS,   // halves h, k:                    h, k                           5
  SUPER,   // halves h, k of a record, bytes a, b of a group:  h a, k b      4.625
  FLOATS4  // floats                                                         6
};

static i64 head_bytes(i64 form, i64 groups) {
  return form == ZEROS ? up(groups * 96, 64) : form == PAIRS ? groups * 128 : form == SUPER ? 128 + groups * 64 : groups * 256;
}

static i64 record_bytes(const Linear& l, i64 groups) { return head_bytes(l.form, groups) + groups * l.bits * 128; }

static i64 block_bytes(const Linear& l) {
  const i64 groups = up(l.in, GROUP) / GROUP, rest = groups % RECORD;
  return groups / RECORD * record_bytes(l, RECORD) + (rest ? record_bytes(l, rest) : 0);
}

struct Scales {  // of a record
  alignas(64) float scale[2][RECORD][16], low[2][RECORD][16];
};

static void decode(const uint8_t* head, i64 form, i64 groups, Scales& s) {
  auto halves = [](const uint8_t* at) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)at)); };
  auto bytes = [](const uint8_t* at) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)at))); };
  for (i64 c = 0; c < 2; c++) {
    const uint8_t *halves_at = head + c * 32, *bytes_at = head + (form == SUPER ? 128 : groups * 64) + c * 16;
    const __m512 first = halves(halves_at), second = halves(halves_at + 64);  // SUPER's
    for (i64 g = 0; g < groups; g++) {
      __m512 scale, low;
      if (form == ZEROS) {
        scale = halves(halves_at + g * 64);
        low = _mm512_mul_ps(bytes(bytes_at + g * 32), _mm512_sub_ps(_mm512_setzero_ps(), scale));
      } else if (form == PAIRS) {
        scale = halves(halves_at + g * 64), low = halves(halves_at + (groups + g) * 64);
      } else if (form == SUPER) {
        scale = _mm512_mul_ps(first, bytes(bytes_at + g * 32));
        low = _mm512_mul_ps(second, bytes(bytes_at + (groups + g) * 32));
      } else {
        scale = _mm512_loadu_ps((const float*)head + g * 32 + c * 16), low = _mm512_loadu_ps((const float*)head + (groups + g) * 32 + c * 16);
      }
      put(s.scale[c][g], scale, 0xffff), put(s.low[c][g], low, 0xffff);
    }
  }
}

#ifndef PACELINE_NARROW
// c [ROWS][16 outputs] = a group's codes times rows of x. `ahead`: bytes from here to what will be wanted next
template <int BITS, int ROWS>
static inline __attribute__((always_inline)) void dots(const uint8_t* w, const uint8_t* x, i64 stride, i64 ahead, __m512i (&c)[ROWS]) {
  const __m512i mask = _mm512_set1_epi8(15);
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; r++) c[r] = _mm512_setzero_si512();
  auto add = [&](__m512i codes, int four) {
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++) {
      int32_t quad;
      memcpy(&quad, x + r * stride + four * 4, 4);
      c[r] = _mm512_dpbusd_epi32(c[r], codes, _mm512_set1_epi32(quad));
    }
  };
#pragma GCC unroll 8
  for (int i = 0; i < BITS; i++) {
    const __m512i line = _mm512_loadu_si512(w + i * 64);
    prefetch(w + i * 64 + ahead);
    if (BITS == 8) {
      add(line, i);
      continue;
    }
    add(_mm512_and_si512(line, mask), 2 * i);
    add(_mm512_and_si512(_mm512_srli_epi16(line, 4), mask), 2 * i + 1);
  }
}

#endif

// sums [ROWS][32] += some groups of 16 outputs; of_rows: the sums of these groups of x, `groups` a row
#if !defined PACELINE_NARROW || defined __aarch64__
template <int BITS, int ROWS>
static void rows_grouped(const uint8_t* w, const uint8_t* x, i64 stride, const float* of_rows, i64 groups, i64 count, i64 ahead,
                         const float (*scale)[16], const float (*low)[16], float* sums) {
  __m512 total[ROWS];
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; r++) total[r] = _mm512_loadu_ps(sums + r * 32);
  for (i64 g = 0; g < count; g++, w += BITS * 64, x += GROUP) {
    __m512i c[ROWS];
    dots<BITS, ROWS>(w, x, stride, ahead, c);
    const __m512 by = _mm512_loadu_ps(scale[g]), from = _mm512_loadu_ps(low[g]);
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++) {
      total[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(c[r]), by, total[r]);
      total[r] = _mm512_fmadd_ps(set(of_rows[r * groups + g]), from, total[r]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; r++) put(sums + r * 32, total[r], 0xffff);
}

#endif

// The same by AMX, which pays for more rows than a panel has: sums [rows][32] += the groups of a record, of both columns
static void tiles_grouped(Tiles& tiles, i64 bits, const uint8_t* codes, const uint8_t* x, i64 stride, const float* of_rows, i64 groups,
                          i64 rows, i64 count, const Scales& s, float* sums) {
  alignas(64) uint8_t lines[8][64];
  alignas(64) int32_t products[16][16];
  const __m512i mask = _mm512_set1_epi8(15);
  for (i64 c = 0; c < 2; c++)
    for (i64 g = 0; g < count; g++, codes += bits * 64) {
      for (i64 i = 0; i < bits; i++) {
        const __m512i line = _mm512_loadu_si512(codes + i * 64);
        if (bits == 8) _mm512_storeu_si512(lines[i], line);
        else _mm512_storeu_si512(lines[2 * i], _mm512_and_si512(line, mask)), _mm512_storeu_si512(lines[2 * i + 1], _mm512_and_si512(_mm512_srli_epi16(line, 4), mask));
      }
      const __m512 by = _mm512_loadu_ps(s.scale[c][g]), from = _mm512_loadu_ps(s.low[c][g]);
      for (i64 r = 0; r < rows; r += 16) {
        const i64 here = std::min<i64>(16, rows - r);
        tiles.set(here, true);
        FENCE;
        _tile_zero(0);
        _tile_loadd(5, x + r * stride + g * GROUP, stride);
        _tile_loadd(7, lines, 64);
        _tile_dpbsud(0, 5, 7);
        _tile_stored(0, products, 64);
        FENCE;
        for (i64 i = r; i < r + here; i++) {
          float* to = sums + i * 32 + c * 16;
          const __m512 total = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_loadu_si512(products[i - r])), by, _mm512_loadu_ps(to));
          put(to, _mm512_fmadd_ps(set(of_rows[i * groups + g]), from, total), 0xffff);
        }
      }
    }
}

// sums [rows][32]: the block w of x [rows], but for the rows' scales. A record stays in the first cache for all panels of
// rows; the first of them fetches the record after the next
static void block_grouped(const Linear& l, const uint8_t* w, const uint8_t* x, i64 stride, const float* of_rows, i64 groups, i64 rows, float* sums,
                          Tiles* tiles) {
  Scales s;
  memset(sums, 0, rows * 32 * 4);
  const i64 full = record_bytes(l, RECORD);
  for (i64 k = 0; k < groups; k += RECORD) {
    const i64 here = std::min(RECORD, groups - k), head = head_bytes(l.form, here);
    fetch(w + 2 * full, head);
    decode(w, l.form, here, s);
    if (tiles && rows > PANEL) {
      fetch(w + 2 * full + head, here * l.bits * 128);
      tiles_grouped(*tiles, l.bits, w + head, x + k * GROUP, stride, of_rows + k, groups, rows, here, s, sums);
    }
    else panels(rows, [&](i64 p, i64, i64 r, auto n) {
      for (i64 c = 0; c < 2; c++)
        (l.bits == 4 ? rows_grouped<4, n> : rows_grouped<8, n>)(w + head + c * here * l.bits * 64, x + r * stride + k * GROUP, stride,
            of_rows + r * groups + k, groups, here, p == 0 ? 2 * full : 0, s.scale[c], s.low[c], sums + r * 32 + c * 16);
    });
    w += head + here * l.bits * 128;
  }
}

// One output's weights as floats, of an embedding
static void weights_of(const Linear& l, i64 output, float* to) {
  Scales s;
  const i64 groups = up(l.in, GROUP) / GROUP, c = output % 32 / 16, lane = output % 16;
  const uint8_t* w = l.weight + output / 32 * block_bytes(l);
  for (i64 k = 0; k < groups; k += RECORD) {
    const i64 here = std::min(RECORD, groups - k), head = head_bytes(l.form, here);
    decode(w, l.form, here, s);
    const uint8_t* codes = w + head + c * here * l.bits * 64 + lane * 4;
    for (i64 i = 0; i < std::min(here * GROUP, l.in - k * GROUP); i++) {
      const i64 g = i / GROUP, four = i % GROUP / 4;
      const uint8_t byte = codes[g * l.bits * 64 + (l.bits == 4 ? four / 2 : four) * 64 + i % 4];
      const uint8_t code = l.bits == 8 ? byte : four % 2 ? byte >> 4 : byte & 15;
      to[k * GROUP + i] = std::fma(s.scale[c][g][lane], (float)code, s.low[c][g][lane]);
    }
    w += head + here * l.bits * 128;
  }
}
