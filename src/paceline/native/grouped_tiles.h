// Products of many rows with weights in groups by AMX. Included by grouped.h.
#pragma once

#ifdef PACELINE_NARROW
static void tiles_grouped(Tiles&, const Linear&, const lanes::Job&, i64, const Table*) {}
#else

// The codes of a group's quads as a tile holds them: a byte for each, less Z where `about_zero`
static void spread(const Linear& l, const Table* table, const uint8_t* codes, bool about_zero, __m512i* quads) {
  const __m512i mask = _mm512_set1_epi8(15);
  for (i64 q = 0; q < 8; q++) {
    __m512i it = _mm512_loadu_si512(codes + (l.bits == 8 ? q : q / 2) * 64);
    if (l.bits < 8) it = _mm512_and_si512(q % 2 ? _mm512_srli_epi16(it, 4) : it, mask);
    if (l.bits == 5 || l.bits == 6) {
      const __m512i more = _mm512_loadu_si512(codes + (4 + (l.bits == 6 ? q / 4 : 0)) * 64);
      const int by = l.bits == 6 ? 4 - q % 4 * 2 : 4 - q;  // to the left
      const __m512i moved = by >= 0 ? _mm512_slli_epi16(more, by) : _mm512_srli_epi16(more, -by);
      it = _mm512_or_si512(it, _mm512_and_si512(moved, _mm512_set1_epi8(l.bits == 6 ? 48 : 16)));
    }
    if (table) it = _mm512_shuffle_epi8(lanes::table(table->whole), it);
    quads[q] = about_zero ? _mm512_sub_epi8(it, _mm512_set1_epi8((char)(1 << zero_of(l)))) : it;
  }
}

// Where scales are whole: codes times scales, in 16 bits, as tiles of their lower and of their upper bytes. Two groups fill one;
// the one sum of a record that is left is S, or S - (B << zero), as in `product_of`
static void tiles_whole(Tiles& tiles, const Linear& l, const lanes::Job& j, i64 rows, const Table* table) {
  alignas(64) uint8_t low[RECORD / 2][16][64], high[RECORD / 2][16][64];
  alignas(64) int32_t products[4][16][16];
  const i64 pairs = (j.count + 1) / 2, parts = l.form == SIXTEENS ? 2 : 1;
  const __m512i bytes = _mm512_set1_epi16(255);
  for (i64 g = 0; g < 2 * pairs; g++) {
    __m512i quads[8];
    if (g < j.count) spread(l, table, j.weight + g * l.bits * 64, l.form != SUPER, quads);
    for (i64 q = 0; q < 8; q++) {
      const __m512i a = _mm512_loadu_si512(j.by->a[g < j.count ? g * parts + q / 4 * (parts - 1) : 0]);
      const __m512i twice = _mm512_or_si512(_mm512_and_si512(a, _mm512_set1_epi32(0xffff)), _mm512_slli_epi32(a, 16));
      const __m512i it = g < j.count ? quads[q] : _mm512_setzero_si512();
      const bool is_signed = l.form != SUPER;
      const __m512i even = is_signed ? _mm512_srai_epi16(_mm512_slli_epi16(it, 8), 8) : _mm512_and_si512(it, bytes);
      const __m512i odd = is_signed ? _mm512_srai_epi16(it, 8) : _mm512_srli_epi16(it, 8);
      const __m512i x = _mm512_mullo_epi16(even, twice), y = _mm512_mullo_epi16(odd, twice);
      _mm512_store_si512(low[g / 2][g % 2 * 8 + q], _mm512_or_si512(_mm512_and_si512(x, bytes), _mm512_slli_epi16(y, 8)));
      _mm512_store_si512(high[g / 2][g % 2 * 8 + q], _mm512_or_si512(_mm512_srli_epi16(x, 8), _mm512_andnot_si512(bytes, y)));
    }
  }
  const __m512 half = _mm512_load_ps(j.by->half), of_lows = _mm512_load_ps(j.by->low);
  for (i64 r = 0; r < rows; r += 32) {
    const i64 here = std::min<i64>(32, rows - r);
    const bool two = here > 16;
    tiles.set(two ? 16 : here, false);  // of a second panel that is not full more is computed than is there: see `Linears::linear`
    FENCE;
    _tile_zero(0);
    _tile_zero(1);
    if (two) {
      _tile_zero(2);
      _tile_zero(3);
    }
    for (i64 p = 0; p < pairs; p++) {
      _tile_loadd(6, low[p], 64);
      _tile_loadd(7, high[p], 64);
      _tile_loadd(4, j.x + r * j.stride + p * 64, j.stride);
      _tile_dpbsud(0, 4, 6);
      _tile_dpbssd(1, 4, 7);
      if (two) {
        _tile_loadd(5, j.x + (r + 16) * j.stride + p * 64, j.stride);
        _tile_dpbsud(2, 5, 6);
        _tile_dpbssd(3, 5, 7);
      }
    }
    _tile_stored(0, products[0], 64);
    _tile_stored(1, products[1], 64);
    if (two) {
      _tile_stored(2, products[2], 64);
      _tile_stored(3, products[3], 64);
    }
    FENCE;
    for (i64 i = 0; i < here; i++) {
      const __m512i less = _mm512_load_si512(products[i / 16 * 2][i % 16]), more = _mm512_load_si512(products[i / 16 * 2 + 1][i % 16]);
      float* to = j.sums + (r + i) * 32;
      __m512 total = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_add_epi32(less, _mm512_slli_epi32(more, 8))), half, _mm512_loadu_ps(to));
      if (j.lows) {
        __m512i sum = _mm512_setzero_si512();
        for (i64 n = 0; n < pairs; n++)
          sum = lanes::pairs(sum, _mm512_load_si512(j.by->b[n]), lanes::four((const uint8_t*)(j.wholes + (r + i) * j.each + 2 * n)));
        total = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), of_lows, total);
      }
      put(to, total, 0xffff);
    }
  }
}

// sums [rows][32] += the groups of a record, of 16 outputs
static void tiles_grouped(Tiles& tiles, const Linear& l, const lanes::Job& j, i64 rows, const Table* table) {
  if (whole_scales(l.form)) return tiles_whole(tiles, l, j, rows, table);
  alignas(64) __m512i lines[8];
  alignas(64) int32_t products[16][16];
  for (i64 g = 0; g < j.count; g++) {
    spread(l, table, j.weight + g * l.bits * 64, false, lines);
    const __m512 by = _mm512_loadu_ps(j.scales->scale[g]), from = _mm512_loadu_ps(j.scales->low[g]);
    for (i64 r = 0; r < rows; r += 16) {
      const i64 here = std::min<i64>(16, rows - r);
      tiles.set(here, true);
      FENCE;
      _tile_zero(0);
      _tile_loadd(5, j.x + r * j.stride + g * 32, j.stride);
      _tile_loadd(7, lines, 64);
      _tile_dpbsud(0, 5, 7);
      _tile_stored(0, products, 64);
      FENCE;
      for (i64 i = r; i < r + here; i++) {
        float* to = j.sums + i * 32;
        const __m512 total = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_loadu_si512(products[i - r])), by, _mm512_loadu_ps(to));
        put(to, _mm512_fmadd_ps(set(j.of_rows[i * j.groups + g]), from, total), 0xffff);
      }
    }
  }
}
#endif
