// Products of many rows with weights in groups by AMX. Included by grouped.h.
#pragma once

#ifdef PACELINE_NARROW
static void tiles_grouped(Tiles&, const Linear&, const lanes::Job&, i64) {}
#else

// The codes of a group's quads as a tile holds them: a byte for each
template <int BITS, bool LOOKED>
static inline void codes_of(const uint8_t* codes, __m512i table, __m512i (&quads)[8]) {
  auto one = [&](auto number) __attribute__((always_inline)) {
    constexpr int Q = number;
    __m512i more{};
    if (BITS == 5) more = _mm512_loadu_si512(codes + 4 * 64);
    if (BITS == 6) more = _mm512_loadu_si512(codes + (4 + Q / 4) * 64);
    quads[Q] = lanes::quad<BITS, LOOKED, Q>(_mm512_loadu_si512(codes + (BITS == 8 ? Q : Q / 2) * 64), more, table, table).low;
  };
#define QUAD(n) one(std::integral_constant<int, n>());
  QUAD(0) QUAD(1) QUAD(2) QUAD(3) QUAD(4) QUAD(5) QUAD(6) QUAD(7)
#undef QUAD
}

// Where scales are whole, codes times scales fill tiles of whole bytes, two groups a tile. Two such products add up to S: of scales
// that are not negative (SUPER) those of their lower bits, which leave a code's product below 256, and of the rest; of others
// the lower and the upper bytes of products of 16 bits. The second counts 16, 8 (of 5 bits) or 256 times.
struct Spread {
  alignas(64) uint8_t low[RECORD / 2][16][64], high[RECORD / 2][16][64];

  // Two codes of an output lie in 16 bits, so one multiplication serves both
  template <int BITS>
  void by_bits(const lanes::Job& j) {
    const int shift = BITS == 4 ? 4 : 3;
    const __m512i rest = _mm512_set1_epi32((1 << shift) - 1);
    auto twice = [](__m512i x) { return _mm512_or_si512(x, _mm512_slli_epi32(x, 16)); };
    for (i64 g = 0; g < j.count; g++) {
      __m512i quads[8];
      codes_of<BITS, false>(j.weight + g * BITS * 64, __m512i{}, quads);
      const __m512i a = _mm512_load_si512(j.by->a[g]), few = twice(_mm512_and_si512(a, rest));
      const __m512i many = twice(_mm512_srli_epi32(_mm512_and_si512(a, _mm512_set1_epi32(0xffff)), shift));
#pragma GCC unroll 8
      for (i64 q = 0; q < 8; q++) {
        _mm512_store_si512(low[g / 2][g % 2 * 8 + q], _mm512_mullo_epi16(quads[q], few));
        _mm512_store_si512(high[g / 2][g % 2 * 8 + q], _mm512_mullo_epi16(quads[q], many));
      }
    }
  }

  template <int BITS, bool LOOKED>
  void by_bytes(const lanes::Job& j, i64 parts) {
    const __m512i table = LOOKED ? lanes::table(j.low_table) : __m512i{}, zero = _mm512_set1_epi8((char)(1 << j.zero));
    const __m512i bytes = _mm512_set1_epi16(255);
    auto either = [&](__m512i x, __m512i y) { return _mm512_ternarylogic_epi32(bytes, x, y, 0xca); };  // lower bytes of x, upper of y
    for (i64 g = 0; g < j.count; g++) {
      __m512i quads[8];
      codes_of<BITS, LOOKED>(j.weight + g * BITS * 64, table, quads);
      for (i64 part = 0; part < 2; part++) {
        const __m512i a = _mm512_load_si512(j.by->a[g * parts + part * (parts - 1)]);
        const __m512i twice = _mm512_or_si512(_mm512_and_si512(a, _mm512_set1_epi32(0xffff)), _mm512_slli_epi32(a, 16));
#pragma GCC unroll 4
        for (i64 q = part * 4; q < part * 4 + 4; q++) {
          const __m512i it = _mm512_sub_epi8(quads[q], zero);
          const __m512i x = _mm512_mullo_epi16(_mm512_srai_epi16(_mm512_slli_epi16(it, 8), 8), twice);
          const __m512i y = _mm512_mullo_epi16(_mm512_srai_epi16(it, 8), twice);
          _mm512_store_si512(low[g / 2][g % 2 * 8 + q], either(x, _mm512_slli_epi16(y, 8)));
          _mm512_store_si512(high[g / 2][g % 2 * 8 + q], either(_mm512_srli_epi16(x, 8), y));
        }
      }
    }
  }

  void end(i64 groups) {  // a last one alone
    if (groups % 2) memset(low[groups / 2][8], 0, 512), memset(high[groups / 2][8], 0, 512);
  }
};

// Panels of 32 rows; while one is multiplied, what the one before it came to is added up. Of rows more are computed than are there
template <bool BY_BITS, int SHIFT>
static void panels_whole(const Spread& of, const lanes::Job& j, i64 rows) {
  alignas(64) int32_t products[2][4][16][16];
  const i64 pairs = (j.count + 1) / 2, panels = (rows + 31) / 32, stride = j.stride, each = j.each;
  const __m512 half = _mm512_load_ps(j.by->half), of_lows = _mm512_load_ps(j.by->low);
  auto line = [&](i64 n) { return n < pairs ? _mm512_load_si512(j.by->b[n]) : _mm512_setzero_si512(); };
  const __m512i b[4] = {line(0), line(1), line(2), line(3)};
  float* const sums = j.sums;
  const int16_t* const wholes = j.wholes;
  const float* const by_rows = j.by_rows;
  const i64 groups = j.groups;
  auto finish = [=, &products](i64 panel, i64 first, i64 last) {  // rows of a panel
    const int32_t(*from)[16][16] = products[panel % 2];
    const i64 row = panel * 32;
    last = std::min(last, rows - row);
    for (i64 i = first; i < last; i++) {
      const __m512i less = _mm512_load_si512(from[i / 16 * 2][i % 16]), more = _mm512_load_si512(from[i / 16 * 2 + 1][i % 16]);
      float* to = sums + (row + i) * 32;
      __m512 y = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_add_epi32(less, _mm512_slli_epi32(more, SHIFT))), half);
      if (BY_BITS) {
        const uint8_t* x = (const uint8_t*)(wholes + (row + i) * each);
        __m512i sum = lanes::pairs(_mm512_setzero_si512(), b[0], lanes::four(x)), other = lanes::pairs(_mm512_setzero_si512(), b[1], lanes::four(x + 4));
        sum = lanes::pairs(sum, b[2], lanes::four(x + 8)), other = lanes::pairs(other, b[3], lanes::four(x + 12));
        y = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_add_epi32(sum, other)), of_lows, y);
      }
      _mm512_storeu_ps(to, _mm512_fmadd_ps(y, set(by_rows[(row + i) * groups]), _mm512_loadu_ps(to)));
    }
  };
  for (i64 panel = 0; panel < panels; panel++) {
    const bool two = rows - panel * 32 > 16;
    const uint8_t* x = j.x + panel * 32 * stride;
    FENCE;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (i64 p = 0; p < pairs; p++) {
      FENCE;
      _tile_loadd(6, of.low[p], 64);
      _tile_loadd(7, of.high[p], 64);
      _tile_loadd(4, x + p * 64, stride);
      _tile_dpbsud(0, 4, 6);
      if (BY_BITS) _tile_dpbsud(1, 4, 7);
      else _tile_dpbssd(1, 4, 7);
      if (two) {
        _tile_loadd(5, x + 16 * stride + p * 64, stride);
        _tile_dpbsud(2, 5, 6);
        if (BY_BITS) _tile_dpbsud(3, 5, 7);
        else _tile_dpbssd(3, 5, 7);
      }
      if (panel > 0 && p > 0) finish(panel - 1, (p - 1) * 8, p * 8);
    }
    int32_t(*to)[16][16] = products[panel % 2];
    FENCE;
    _tile_stored(0, to[0], 64);
    _tile_stored(1, to[1], 64);
    if (two) {
      _tile_stored(2, to[2], 64);
      _tile_stored(3, to[3], 64);
    }
    FENCE;
    if (panel > 0) finish(panel - 1, pairs * 8 - 8, 32);
  }
  finish(panels - 1, 0, 32);
}

static void tiles_whole(Tiles& tiles, const Linear& l, const lanes::Job& j, i64 rows) {
  Spread of;
  tiles.set(std::min<i64>(rows, 16), false);
  if (l.form == SUPER && l.bits == 4) of.by_bits<4>(j);
  else if (l.form == SUPER) of.by_bits<5>(j);
  else if (l.form == SIGNED && l.table) of.by_bytes<4, true>(j, 1);
  else if (l.form == SIGNED) of.by_bytes<4, false>(j, 1);
  else if (l.bits == 4) of.by_bytes<4, false>(j, 2);
  else of.by_bytes<6, false>(j, 2);
  of.end(j.count);
  if (l.form != SUPER) panels_whole<false, 8>(of, j, rows);
  else if (l.bits == 4) panels_whole<true, 4>(of, j, rows);
  else panels_whole<true, 3>(of, j, rows);
}

// Where scales are floats: 16 rows keep their sums in registers, and while one group is multiplied, the one before it is added up
template <int BITS, bool LOOKED>
static void tiles_floats(Tiles& tiles, const lanes::Job& j, i64 rows) {
  alignas(64) __m512i lines[RECORD][8];
  alignas(64) int32_t products[2][16][16];
  const __m512i table = LOOKED ? lanes::table(j.low_table) : __m512i{};
  for (i64 g = 0; g < j.count; g++) codes_of<BITS, LOOKED>(j.weight + g * BITS * 64, table, lines[g]);
  const i64 count = j.count, groups = j.groups, stride = j.stride;
  tiles.set(std::min<i64>(rows, 16), true);
  for (i64 r = 0; r < rows; r += 16) {
    float* const sums = j.sums + r * 32;
    const float *const of_rows = j.of_rows + r * groups, *const by_rows = j.by_rows + r * groups;
    __m512 total[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) total[i] = _mm512_loadu_ps(sums + i * 32);
    for (i64 g = 0; g <= count; g++) {
      if (g < count) {
        FENCE;
        _tile_zero(0);
        _tile_loadd(5, j.x + r * stride + g * 32, stride);
        _tile_loadd(7, lines[g], 64);
        _tile_dpbsud(0, 5, 7);
        _tile_stored(0, products[g % 2], 64);
        FENCE;
      }
      if (g == 0) continue;
      const __m512 by = _mm512_load_ps(j.scales->scale[g - 1]), from = _mm512_load_ps(j.scales->low[g - 1]);
#pragma GCC unroll 16
      for (int i = 0; i < 16; i++) {
        const __m512 y = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_load_si512(products[(g - 1) % 2][i])), by);
        total[i] = _mm512_fmadd_ps(_mm512_fmadd_ps(set(of_rows[i * groups + g - 1]), from, y), set(by_rows[i * groups + g - 1]), total[i]);
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) _mm512_storeu_ps(sums + i * 32, total[i]);
  }
}

// sums [rows][32] += the groups of a record, of 16 outputs; there is room for whole panels of 32 rows
static void tiles_grouped(Tiles& tiles, const Linear& l, const lanes::Job& j, i64 rows) {
  if (whole_scales(l.form)) tiles_whole(tiles, l, j, rows);
  else if (l.table) tiles_floats<4, true>(tiles, j, rows);
  else if (l.bits == 4) tiles_floats<4, false>(tiles, j, rows);
  else if (l.bits == 5) tiles_floats<5, false>(tiles, j, rows);
  else tiles_floats<8, false>(tiles, j, rows);
}
#endif
