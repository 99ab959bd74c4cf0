// Weights of 4, 5, 6 or 8 bits in groups of 32 along the input: weight = scale * code + low, the code unsigned, or what a table
// of 16 has for it. model/grouped.py packs them and is the slow twin.
//
// A block of 32 outputs is a chain of records of 8 groups, the last of what is left: first what scales and lows are made of
// (`Form`), [group][32 outputs] each, or one for 2, 4 or 8 groups together; then the codes of 16 outputs, then those of the other
// 16, [group][line][output][4 inputs]. Of 4 bits a byte holds two codes, 4 inputs apart; the fifth bits lie in one more
// line, bit q of a byte being that of quad q; the fifth and sixth in two more, bits 2 (q % 4) and the next.
//
// Rows are int8 with a scale for each group, the same for those of a record where weights' scales are whole. The sum of a group is a whole number, exact, whatever multiplies, and so is that of a record where
// scales are whole; the order of groups is fixed: so a row has the same bits on every CPU that adds up floats alike.
#pragma once

#include "grouped_product.h"

const i64 GROUP = 32, RECORD = 8;
const i64 TILED_ROWS = 9;  // most rows for which AVX-512 is quicker than AMX: a record has to be spread for tiles first

// What scale and low are made of: Z is 2^(bits - 1), 128 of a table                      bits a weight of 4:
enum Form {
  WHOLE,     // no groups: bfloat16, or int8 with a scale for each output
  ZEROS,     // half h, byte z:                 h, -h z                                      4.75
  PAIRS,     // halves h, k:                    h, k                                         5
  SUPER,     // halves h, k of a record, bytes a, b of a group:  h a, k b                    4.625
  FLOATS4,   // floats                                                                       6
  HALF,      // half h:                         h, -h Z                                      4.5
  EXPONENT,  // byte e:                         2^(e - 128), -Z times that                   4.25
  SIXTEENS,  // half h of a record, signed byte a of each 16 inputs:  h a, -h a Z            4.5625
  SIGNED     // half h of a record, signed byte a of a group, with a table:  h a, -h a Z     4.3125
};

static bool whole_scales(i64 form) { return form == SUPER || form == SIXTEENS || form == SIGNED; }

// Bytes before the codes of a record with this many groups and scales
static i64 head_bytes(i64 form, i64 groups, i64 scales) {
  switch (form) {
    case ZEROS: return up(scales * 96, 64);
    case PAIRS: return scales * 128;
    case SUPER: return 128 + groups * 64;
    case HALF: return scales * 64;
    case EXPONENT: return up(scales * 32, 64);
    case SIXTEENS: return 64 + groups * 64;
    case SIGNED: return 64 + up(groups * 32, 64);
    default: return scales * 256;
  }
}

static i64 scales_of(const Linear& l, i64 groups) { return up(groups, 1ll << l.spread) >> l.spread; }
static i64 head_bytes(const Linear& l, i64 groups) { return head_bytes(l.form, groups, scales_of(l, groups)); }
static i64 record_bytes(const Linear& l, i64 groups) { return head_bytes(l, groups) + groups * l.bits * 128; }

static i64 block_bytes(const Linear& l) {
  const i64 groups = up(l.in, GROUP) / GROUP, rest = groups % RECORD;
  return groups / RECORD * record_bytes(l, RECORD) + (rest ? record_bytes(l, rest) : 0);
}

static i64 zero_of(const Linear& l) { return l.table ? 7 : l.bits - 1; }  // 2 to this is Z

// What codes stand for, plus 128: IQ4, and MXFP4 (doubled); and the lower and upper four bits of that apart
struct Table {
  alignas(16) uint8_t whole[16], low[16], high[16];
  explicit Table(const int (&values)[16]) {
    for (int i = 0; i < 16; i++) whole[i] = values[i] + 128, low[i] = whole[i] & 15, high[i] = whole[i] >> 4;
  }
};
static const Table& table_of(i64 which) {
  static const Table iq4({-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113});
  static const Table fp4({0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12});
  return which == 1 ? iq4 : fp4;
}

static __m512 halves_at(const uint8_t* at) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)at)); }

// Scales and lows of 16 outputs, from `output` on, of forms whose scales are floats
static void decode(const Linear& l, const uint8_t* head, i64 output, i64 groups, lanes::Scales& s) {
  const i64 n = scales_of(l, groups), each = 1ll << l.spread;
  const __m512 minus = set(-(float)(1 << zero_of(l))), by = _mm512_castsi512_ps(_mm512_set1_epi32((int32_t)(l.power + 127) << 23));
  for (i64 i = 0; i < n; i++) {
    __m512 scale, low;
    const i64 at = i * 32 + output;
    if (l.form == ZEROS) {
      const __m512 zero = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)(head + n * 64 + at))));
      scale = _mm512_mul_ps(halves_at(head + at * 2), by);
      low = _mm512_mul_ps(zero, _mm512_sub_ps(_mm512_setzero_ps(), scale));
    } else if (l.form == PAIRS) {
      scale = _mm512_mul_ps(halves_at(head + at * 2), by), low = _mm512_mul_ps(halves_at(head + (n * 32 + at) * 2), by);
    } else if (l.form == HALF) {
      scale = _mm512_mul_ps(halves_at(head + at * 2), by), low = _mm512_mul_ps(scale, minus);
    } else if (l.form == EXPONENT) {
      const __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)(head + at)));
      scale = _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(e, 23)), set(0.5f)), low = _mm512_mul_ps(scale, minus);
    } else {
      scale = _mm512_loadu_ps((const float*)head + at), low = _mm512_loadu_ps((const float*)head + n * 32 + at);
    }
    for (i64 g = i * each; g < std::min(i * each + each, groups); g++) put(s.scale[g], scale, 0xffff), put(s.low[g], low, 0xffff);
  }
}

// Whole scales of 16 outputs as `product_of` multiplies them
static void decode(const Linear& l, const uint8_t* head, i64 output, i64 groups, lanes::Wholes& s) {
  const bool apart = l.form == SUPER;
  const i64 parts = l.form == SIXTEENS ? 2 * groups : groups;
  const uint8_t* a = head + (apart ? 128 : 64) + output;
  const uint8_t* b = apart ? a + groups * 32 : a;
  put(s.half, halves_at(head + output * 2), 0xffff);
  if (apart) put(s.low, halves_at(head + 64 + output * 2), 0xffff);
  auto sixteen = [=](const uint8_t* at) { return _mm_loadu_si128((const __m128i*)at); };
#if defined PACELINE_NARROW && !defined __aarch64__
  const __m128i none = _mm_setzero_si128();
  auto wide = [=](__m128i x) { return apart ? _mm256_cvtepu8_epi16(x) : _mm256_cvtepi8_epi16(x); };
  for (i64 p = 0; p < parts; p++) {
    const __m128i x = sixteen(a + p * 32);
    for (int i = 0; i < 2; i++) {
      const __m128i eight = i ? _mm_unpackhi_epi64(x, x) : x;
#if defined __AVXVNNI__ || defined __AVX512VNNI__
      const __m256i it = apart ? _mm256_cvtepu8_epi32(eight) : _mm256_cvtepi8_epi32(eight);
#else
      const __m256i it = wide(_mm_unpacklo_epi8(eight, eight));
#endif
      _mm256_store_si256((__m256i*)(s.a[p] + 8 * i), it);
    }
  }
  for (i64 p = 0; p < parts; p += 2) {
    const __m128i x = sixteen(b + p * 32), y = p + 1 < parts ? sixteen(b + p * 32 + 32) : none;
    _mm256_store_si256((__m256i*)s.b[p / 2], wide(_mm_unpacklo_epi8(x, y)));
    _mm256_store_si256((__m256i*)(s.b[p / 2] + 8), wide(_mm_unpackhi_epi8(x, y)));
  }
#else
  auto wide = [=](const uint8_t* at) { return apart ? _mm512_cvtepu8_epi32(sixteen(at)) : _mm512_cvtepi8_epi32(sixteen(at)); };
  for (i64 p = 0; p < parts; p++) _mm512_storeu_si512(s.a[p], wide(a + p * 32));
  for (i64 p = 0; p < parts; p += 2) {
    const __m512i x = _mm512_and_si512(wide(b + p * 32), _mm512_set1_epi32(0xffff));
    const __m512i y = p + 1 < parts ? _mm512_slli_epi32(wide(b + p * 32 + 32), 16) : _mm512_setzero_si512();
    _mm512_storeu_si512(s.b[p / 2], _mm512_or_si512(x, y));
  }
#endif
}

// The sums of rows' groups, from a row on
struct RowSums {
  const float *scales, *sums;  // [rows][groups]
  const int16_t* wholes;  // [rows][each]: the same (an odd count has a 0 behind it), then of each 16 inputs: their sum, or
                          // those of the two pairs of their quads, for `centred` products
  i64 groups, each;
  RowSums of(i64 row) const { return {scales + row * groups, sums + row * groups, wholes + row * each, groups, each}; }
};

static i64 wholes_each(i64 groups) { return up(groups, 2) + (lanes::SPLITS ? 4 : 2) * groups; }

static int16_t sum_of_16(const int8_t* x) {
#ifdef __aarch64__
  return vaddlvq_s8(vld1q_s8(x));
#else
  const __m128i away = _mm_xor_si128(_mm_loadu_si128((const __m128i*)x), _mm_set1_epi8(-128)), two = _mm_sad_epu8(away, _mm_setzero_si128());
  return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_unpackhi_epi64(two, two))) - 16 * 128;
#endif
}

#include "grouped_tiles.h"

// sums [rows][32]: the block w of x [rows]. A record stays in the first cache for all panels of
// rows; the first of them fetches the record after the next
static void block_grouped(const Linear& l, const uint8_t* w, const uint8_t* x, i64 stride, const RowSums& of_rows, i64 groups, i64 rows,
                          float* sums, Tiles* tiles) {
  const bool whole = whole_scales(l.form), halves = l.form == SIXTEENS;
  lanes::Scales scales;
  lanes::Wholes wholes;
  memset(sums, 0, rows * 32 * 4);
  const lanes::Product* multiply = lanes::products(l.bits, l.table != 0, !whole ? lanes::BY_FLOATS : halves ? lanes::BY_HALF : lanes::BY_GROUP);
  const i64 full = record_bytes(l, RECORD);
  const Table* table = l.table ? &table_of(l.table) : nullptr;
  lanes::Job j = {};
  j.stride = stride, j.groups = of_rows.groups, j.each = of_rows.each, j.scales = &scales, j.by = &wholes, j.lows = l.form == SUPER, j.zero = zero_of(l);
  if (table) j.low_table = lanes::SPLITS ? table->low : table->whole, j.high_table = table->high;
  for (i64 k = 0; k < groups; k += RECORD) {
    const i64 here = std::min(RECORD, groups - k), head = head_bytes(l, here);
    fetch(w + 2 * full, head);
    const bool tiled = tiles && rows > TILED_ROWS;
    if (tiled) fetch(w + 2 * full + head, here * l.bits * 128);
    j.count = here, j.x = x + k * GROUP, j.of_rows = of_rows.sums + k, j.by_rows = of_rows.scales + k;
    j.wholes = of_rows.wholes + (halves ? up(of_rows.groups, 2) + (lanes::SPLITS ? 4 : 2) * k : k);
    for (int c = 0; c < 2; c++) {
      j.weight = w + head + c * here * l.bits * 64, j.sums = sums + c * 16;
      if (whole) decode(l, w, c * 16, here, wholes);
      else decode(l, w, c * 16, here, scales);
      if (tiled) {
        tiles_grouped(*tiles, l, j, rows);
        continue;
      }
      for (i64 r = 0; r < rows;) {  // panels of about the same size
        const i64 left = (rows - r + lanes::TOGETHER - 1) / lanes::TOGETHER, count = (rows - r + left - 1) / left;
        j.ahead = r == 0 ? 2 * full : 0;
        multiply[count - 1](j, r), r += count;
      }
    }
    w += head + here * l.bits * 128;
  }
}

// One output's weights as floats, of an embedding
static void weights_of(const Linear& l, i64 output, float* to) {
  lanes::Scales s;
  const i64 groups = up(l.in, GROUP) / GROUP, c = output % 32 / 16, lane = output % 16;
  const uint8_t* w = l.weight + output / 32 * block_bytes(l);
  auto half = [](const uint8_t* at) { return _mm512_cvtss_f32(halves_at(at)); };  // reads 32 bytes
  for (i64 k = 0; k < groups; k += RECORD) {
    const i64 here = std::min(RECORD, groups - k), head = head_bytes(l, here), at = c * 16 + lane;
    if (!whole_scales(l.form)) decode(l, w, c * 16, here, s);
    const uint8_t* codes = w + head + c * here * l.bits * 64 + lane * 4;
    for (i64 i = 0; i < std::min(here * GROUP, l.in - k * GROUP); i++) {
      const i64 g = i / GROUP, four = i % GROUP / 4;
      const uint8_t* lines = codes + g * l.bits * 64 + i % 4;
      i64 code = l.bits == 8 ? lines[four * 64] : four % 2 ? lines[four / 2 * 64] >> 4 : lines[four / 2 * 64] & 15;
      if (l.bits == 5) code |= (lines[4 * 64] >> four & 1) << 4;
      if (l.bits == 6) code |= (lines[(4 + four / 4) * 64] >> four % 4 * 2 & 3) << 4;
      if (l.table) code = table_of(l.table).whole[code];
      float scale = s.scale[g][lane], low = s.low[g][lane];
      if (l.form == SUPER) {
        scale = half(w + at * 2) * w[128 + g * 32 + at], low = half(w + 64 + at * 2) * w[128 + (here + g) * 32 + at];
      } else if (whole_scales(l.form)) {
        scale = half(w + at * 2) * (int8_t)w[64 + (l.form == SIXTEENS ? i / 16 : g) * 32 + at], low = -(float)(1 << zero_of(l)) * scale;
      }
      to[k * GROUP + i] = std::fma(scale, (float)code, low);
    }
    w += head + here * l.bits * 128;
  }
}
