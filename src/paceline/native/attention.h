// Attention of rows over a paged prefix and their own tree.
#pragma once

#include "cache.h"

struct Attention : Cache {
  using Cache::Cache;
  static const i64 MANY = PANEL<FLOATS> + 1;  // queries for which it pays to widen what they meet first

  // `score` and `mix` without AMX: two groups of keys, or parts of values, at a time for a panel of queries, while
  // the panels fetch evenly what comes next
  template <Left LEFT, class F>
  void score_avx(const uint8_t* query, i64 rows, const bf16* const* keys, i64 groups, float* scores, F ahead) const {
    rows = std::max<i64>(rows, FEW<LEFT>);  // as block_avx does
    const i64 stride = dims() / 2 * MEETS<LEFT>;
    for (i64 g = 0; g < groups; g += 2) {
      const i64 other = std::min(g + 1, groups - 1);
      const bf16 *next = ahead(g), *after = ahead(other);
      panels<LEFT>(rows, [&](i64 p, i64 step, i64 r, auto n) {
        __m512i c[n][2] = {};
        auto part = [&](const bf16* group) { return (const uint8_t*)group + p * step * dims() / 2; };
        Ahead lines = {part(next ? next : keys[g]), part(after ? after : keys[other]), step};
        for (i64 d = 0; d < dims(); d += 32)
          product<LEFT, n, 16>(c, query + r * stride + d / 2 * MEETS<LEFT>, stride, keys[g] + d * 16, keys[other] + d * 16, 64, lines);
        for (i64 i = 0; i < n; i++) {
          float* to = scores + (r + i) * LINE + g * 16;
          _mm512_storeu_si512(to, c[i][0]);
          if (other > g) _mm512_storeu_si512(to + 16, c[i][1]);
        }
      });
    }
  }

  template <Left LEFT, class F>
  void mix_avx(const uint8_t* shares, i64 rows, const bf16* const* values, i64 groups, float* out, F ahead) const {
    const i64 few = 8;  // groups, which stay in the first cache for all panels
    for (i64 from = 0; from < groups; from += few) {
      const i64 to = std::min(from + few, groups);
      const bf16* next[few];
      for (i64 g = from; g < to; g++) {
        const bf16* it = ahead(g);
        next[g - from] = it ? it : values[g];
      }
      panels<LEFT>(rows, [&](i64 p, i64 step, i64 r, auto n) {
        for (i64 d = 0; d < dims(); d += 32) {
          float* y = out + r * dims() + d;
          __m512i c[n][2];
          for (i64 i = 0; i < n; i++) c[i][0] = _mm512_loadu_si512(y + i * dims()), c[i][1] = _mm512_loadu_si512(y + i * dims() + 16);
          for (i64 g = from; g < to; g++) {
            const uint8_t* at = (const uint8_t*)next[g - from] + (p * dims() / 2 + d / 2) * step;
            Ahead lines = {at, at + step, 2 * step};
            const bf16* v = values[g] + d * 2;
            product<LEFT, n, 8>(c, shares + (r * LINE / 2 + g * 8) * MEETS<LEFT>, LINE / 2 * MEETS<LEFT>, v, v + 32, dims() * 4, lines);
          }
          for (i64 i = 0; i < n; i++) _mm512_storeu_si512(y + i * dims(), c[i][0]), _mm512_storeu_si512(y + i * dims() + 16, c[i][1]);
        }
      });
    }
  }

#ifdef PACELINE_NARROW
  // The same of many float32 rows: keys and values are widened once for all of them, and the widened ones stay in the first cache
  template <class F>
  void score_many(const float* query, i64 rows, const bf16* const* keys, i64 groups, float* scores, F ahead) const {
    float* wide = room<float>(s.wide, 16 * dims());
    for (i64 g = 0; g < groups; g++) {
      const bf16* next = ahead(g);
      for (i64 d = 0; d < dims(); d += 2) narrow::widened(keys[g] + d * 16, wide + d * 16);
      panels<FLOATS>(rows, [&](i64 p, i64 step, i64 r, auto n) {
        if (next) fetch((const uint8_t*)next + p * step * dims() / 2, step * dims() / 2);
        narrow::sixteen<n, false>(query + r * dims(), dims(), wide, dims(), scores + r * LINE + g * 16, LINE);
      });
    }
  }

  template <class F>
  void mix_many(const float* shares, i64 rows, const bf16* const* values, i64 groups, float* out, F ahead) const {
    const i64 few = 16;  // groups
    float* wide = room<float>(s.wide, few * 16 * 16);
    for (i64 from = 0; from < groups; from += few) {
      const i64 here = std::min(groups - from, few), parts = dims() / 16;
      for (i64 part = 0; part < parts; part++) {
        for (i64 g = 0; g < here; g++)
          for (i64 i = 0; i < 8; i++)
            narrow::widened(values[from + g] + (i * dims() + part * 16) * 2, wide + (g * 8 + i) * 32);
        for (i64 g = here * part / parts; g < here * (part + 1) / parts; g++)
          if (const bf16* next = ahead(from + g)) fetch(next, dims() * 32);
        panels<FLOATS>(rows, [&](i64, i64, i64 r, auto n) {
          narrow::sixteen<n, true>(shares + r * LINE + from * 16, LINE, wide, here * 16, out + r * dims() + part * 16, dims());
        });
      }
    }
  }
#endif

  // scores [rows][LINE] of queries, at most 16 by tiles, with `groups` of 16 keys. ahead(g): the group to fetch meanwhile, or null
  template <class F>
  void score(const uint8_t* query, i64 rows, const bf16* const* keys, i64 groups, float* scores, F ahead) const {
#ifdef PACELINE_NARROW
    if (rows >= MANY) return score_many((const float*)query, rows, keys, groups, scores, ahead);
#endif
    if (m.fused()) return score_avx<FLOATS>(query, rows, keys, groups, scores, ahead);
#ifndef PACELINE_NARROW
    if (!m.tiles()) return score_avx<HALVES>(query, rows, keys, groups, scores, ahead);
#endif
    FENCE;
    _tile_loadd(2, query, dims() * 2);  // these stay
    if (dims() > 32) _tile_loadd(3, query + 64, dims() * 2);
    for (i64 g = 0; g < groups; g++) {
      if (const bf16* next = ahead(g)) fetch(next, dims() * 32);
      _tile_zero(0);
      _tile_loadd(6, keys[g], 64);
      _tile_dpbf16ps(0, 2, 6);
      if (dims() > 32) {
        _tile_loadd(6, keys[g] + 512, 64);
        _tile_dpbf16ps(0, 3, 6);
      }
      for (i64 d = 64; d < dims(); d += 32) {
        _tile_loadd(4, query + d * 2, dims() * 2);
        _tile_loadd(6, keys[g] + d * 16, 64);
        _tile_dpbf16ps(0, 4, 6);
      }
      _tile_stored(0, scores + g * 16, LINE * 4);
    }
    FENCE;
  }

  // out [rows][dims] += shares [rows][LINE] of 16 slots a group times their values; ahead as above
  template <class F>
  void mix(const uint8_t* shares, i64 rows, const bf16* const* values, i64 groups, float* out, F ahead) const {
#ifdef PACELINE_NARROW
    if (rows >= MANY) return mix_many((const float*)shares, rows, values, groups, out, ahead);
#endif
    if (m.fused()) return mix_avx<FLOATS>(shares, rows, values, groups, out, ahead);
#ifndef PACELINE_NARROW
    if (!m.tiles()) return mix_avx<HALVES>(shares, rows, values, groups, out, ahead);
#endif
    for (i64 d = 0; d < dims(); d += 64) {
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
        const bf16* next = d == 0 ? ahead(g) : nullptr;
        if (next) fetch(next, dims() * 32);
        _tile_loadd(5, shares + g * 32, LINE * 2);
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
  }

  // Of the sixteen places from `at` on those that a segment's rows do not see
  __mmask16 hidden(const Segment& seg, i64 at) const {
    __mmask16 out = 0;
    for (i64 i = seg.first; i < seg.first + seg.hidden; i++) out |= below(p.hides[2 * i + 1] - at) & ~below(p.hides[2 * i] - at);
    return out;
  }

  // Softmax over places [lo, hi) of a query's scores, which begin at `origin`: its sum, and what it is relative to.
  // Shares elsewhere: 0
  float softmax(const Segment& seg, float* scores, uint8_t* shares, i64 width, i64 origin, i64 lo, i64 hi, float& top) const {
    const i64 first = std::min(lo / 16 * 16 - origin, width), last = lo < hi ? up(hi, 16) - origin : first;
    const i64 whole_from = up(lo, 16) - origin, whole_to = hi / 16 * 16 - origin;
    auto whole = [=](i64 i) { return i >= whole_from && i < whole_to && !seg.hidden; };  // as nearly all are: they need no mask
    auto seen = [&](i64 i) -> __mmask16 { return below(hi - origin - i) & ~below(lo - origin - i) & ~hidden(seg, origin + i); };
    stir();
    float scale = (float)m.attention_scale;
    if (m.attention_cap > 0) {
      for (i64 i = first; i < last; i += 16)
        _mm512_storeu_ps(scores + i, capped(_mm512_mul_ps(_mm512_loadu_ps(scores + i), set(scale)), (float)m.attention_cap));
      scale = 1;
    }
    const __m512 most = strands(last - first, set(-INFINITY), [&](__m512 most, i64 i, __mmask16) {
      const __m512 x = _mm512_loadu_ps(scores + first + i);
      return whole(first + i) ? larger(most, x) : _mm512_mask_max_ps(most, seen(first + i), most, x);
    }, larger);
    const bool floats = m.fused();
    __m512 sum = _mm512_setzero_ps();
    top = _mm512_reduce_max_ps(most) * scale;
    const __m512 scale2 = set(scale * TO_2), top2 = set(top * TO_2);
    if (first > 0) memset(shares, 0, first * m.wide());
    for (i64 i = first; i < last; i += 16) {
      const __m512 t = _mm512_fmsub_ps(_mm512_loadu_ps(scores + i), scale2, top2);
      __m512 e = exponential2(t);
      if (!whole(i)) e = _mm512_maskz_mov_ps(seen(i), e);
      sum = _mm512_add_ps(sum, e);
      keep(shares, i, floats, e);
    }
    if (last < width) memset(shares + last * m.wide(), 0, (width - last) * m.wide());
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
    a.sum = std::fma(b.sum, _mm512_cvtss_f32(y), a.sum * _mm512_cvtss_f32(x));  // the compiler has no choice of what it fuses
    a.top = top;
  }

  // Queries of a piece by row, clipped to [low, high)
  void of(const Piece& piece, i64 row, i64 low, i64 high, i64& from, i64& to) const {
    from = std::max(row * group() - piece.first, low), to = std::min((row + 1) * group() - piece.first, high);
  }

  // The first keys of a piece. What lies behind them is fetched as if its pages were neighbours: if not, for nothing
  const bf16* first_keys(const Piece& piece, i64 layer) const {
    return pool(m.keys, layer, piece.head, slot(piece.segment, piece.span * SPAN) / 16);
  }

  i64 together() const { return m.tiles() ? 16 : QUERIES; }  // queries that meet a span's keys and values at once

  // after: what this thread will attend to next, or null
  void attend(const Piece& piece, i64 layer, const Layer& l, const bf16* after) {
    const i64 count = piece.last - piece.first;
    float* out = room<float>(s.out, (QUERIES + together()) * dims());
    float *fresh = out + QUERIES * dims(), *where = out;
    Mixed all[QUERIES];
    for (i64 q = 0; q < count; q++, where += dims()) all[q] = {0, 0, where};
    for (i64 span = piece.span; span < piece.span + piece.spans; span++) attend(piece, layer, l, span, after, fresh, all);
    for (i64 q = 0; q < count; q++) {
      if (!piece.part) finish(piece, q, all[q], l);
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

  void join(const Piece& piece, const Layer& l) {  // the spans of its queries, in order
    for (i64 q = 0; q < piece.last - piece.first; q++) {
      Mixed all = {0, 0, room<float>(s.out, dims())};
      for (i64 span = piece.span; span < piece.span + piece.join; span++) {
        float* from = part(piece, q, span);
        merge(all, {from[0], from[1], from + 16});
      }
      finish(piece, q, all, l);
    }
  }

  void finish(const Piece& piece, i64 q, const Mixed& it, const Layer& l) const {
    const i64 query = piece.first + q, row = p.segment[piece.segment].start + query / group();
    const i64 head = piece.head * group() + query % group(), column = head * m.head_dim;
    const float sum = l.sinks ? it.sum + std::exp(l.sinks[head] - it.top) : it.sum;
    for (i64 d = 0; d < m.head_dim; d += 16) {
      __m512 y = _mm512_mul_ps(_mm512_loadu_ps(it.out + d), set(1.f / sum));
      const __mmask16 k = below(m.head_dim - d);
      if (m.gates) y = _mm512_mul_ps(y, sigmoid(_mm512_maskz_loadu_ps(k, b.gates + row * m.heads * m.head_dim + column + d)));
      if (m.int8) _mm512_mask_storeu_ps(b.wide + row * m.heads * m.head_dim + column + d, k, y);
      else keep(b.mixed.data + row * b.mixed.stride, column + d, m.fused(), y, k);
    }
  }

  // One span. Keys of a segment up to group `own` (of 16 positions) are the same for all its rows. From there on, in a
  // tree that is not a chain, all queries meet the keys as they lie, by slot, and each row sorts the scores of its path by
  // position; its values it gathers in that order, too, unless its path is one of slots that follow one another.
  void attend(const Piece& piece, i64 layer, const Layer& l, i64 span, const bf16* after, float* fresh, Mixed* all) {
    const Segment& seg = p.segment[piece.segment];
    const i64 count = piece.last - piece.first, size = 16 * dims();
    const i64 row0 = piece.first / group(), row1 = (piece.last - 1) / group() + 1;
    auto position = [&](i64 row) { return p.position[seg.start + row] + seg.shift; };  // its place, as all below
    auto begin = [&](i64 row) { return l.window ? std::max<i64>(0, position(row) - l.window + 1) : 0; };
    i64 lo = INT64_MAX, hi = 0;
    for (i64 r = row0; r < row1; r++) lo = std::min(lo, begin(r)), hi = std::max(hi, position(r) + 1);
    lo = std::max(lo, span * SPAN), hi = std::min(hi, span * SPAN + SPAN);
    if (lo >= hi) return;
    const i64 origin = lo / 16, groups = up(hi, 16) / 16 - origin;
    const i64 own = b.chain[piece.segment] ? groups : std::max<i64>(0, std::min((seg.base + seg.given) / 16 - origin, groups));
    auto tail = [&](i64 row) { return std::max<i64>(0, up(std::min(position(row) + 1, hi), 16) / 16 - origin - own); };
    const i64 border = (origin + own) * 16, end = seg.base + seg.given, all_slots = end + seg.nodes;
    const i64 met = own < groups ? own + up(all_slots - border, 16) / 16 : own;  // groups of keys as they lie

    const bool paged = m.block_size % 16 == 0;
    i64 tails_of_all = 0;
    for (i64 r = row0; r < row1; r++) tails_of_all += tail(r);
    stir();
    bf16* copy = room<bf16>(s.gathered, (tails_of_all + (paged && !m.bytes ? 0 : own + met)) * size);
    const bf16 **keys = room<const bf16*>(s.keys, met), **values = room<const bf16*>(s.values, own + tails_of_all);
    i64 slots[16];
    const i64* table = p.table + piece.segment * p.width;
    const i64 whole = std::max<i64>(1, m.block_size / 16);  // groups of a block
    for (i64 g = 0, block = origin / whole, of = origin % whole; paged && g < met; g++) {
      const i64 place = table[block] * whole + of;
      if (m.bytes) {
        widen(false, bytes(false, layer, piece.head, place), copy), keys[g] = copy, copy += size;
        if (g < own) widen(true, bytes(true, layer, piece.head, place), copy), values[g] = copy, copy += size;
      } else {
        keys[g] = pool(m.keys, layer, piece.head, place);
        if (g < own) values[g] = pool(m.values, layer, piece.head, place);
      }
      if (++of == whole) of = 0, block++;
    }
    for (i64 g = 0; !paged && g < met; g++) {
      const i64 at = (origin + g) * 16;
      for (i64 j = 0; j < 16; j++) slots[j] = at + j < (g < own ? hi : all_slots) ? slot(piece.segment, at + j) : -1;
      gather_keys(layer, piece.head, slots, copy);
      keys[g] = copy, copy += size;
      if (g >= own) continue;
      gather_values(layer, piece.head, slots, 0, copy);
      values[g] = copy, copy += size;
    }
    for (i64 r = row0, n = own; r < row1; r++)
      for (i64 t = 0; t < tail(r); t++, n++) {
        const i64 at = border + t * 16;
        if (paged && straight(seg, r) && m.bytes) {
          widen(true, bytes(true, layer, piece.head, slot(piece.segment, at) / 16), copy), values[n] = copy, copy += size;
          continue;
        }
        if (paged && straight(seg, r)) {
          values[n] = pool(m.values, layer, piece.head, slot(piece.segment, at) / 16);
          continue;
        }
        const i64 prefix = std::max<i64>(0, std::min({end - at, position(r) + 1 - at, (i64)16}));
        for (i64 j = 0; j < 16; j++) slots[j] = j < prefix && (j == 0 || !paged) ? slot(piece.segment, at + j) : -1;
        ancestors(seg, r, [&](i64 rank, i64 where) {
          if (where >= at && where < at + 16) slots[where - at] = p.slot[seg.start + seg.given + rank];
        });
        gather_values(layer, piece.head, slots, paged ? prefix : 0, copy);
        values[n] = copy, copy += size;
      }

    stir();
    const uint8_t* query = b.query + ((piece.head * p.rows + seg.start) * group() + piece.first) * dims() * m.wide();
    const i64 most = together();
    float* scores = room<float>(s.scores, most * LINE);
    uint8_t* shares = m.fused() ? (uint8_t*)scores : (uint8_t*)room<bf16>(s.shares, most * LINE);  // as large: in their place
    Mixed some[QUERIES];
    for (i64 q = 0; q < count; q += most) {
      const i64 here = std::min(count - q, most);
      // f(queries from, to; their first key, and how many after `own`) for each row with keys of its own
      auto tails = [&](auto f) {
        i64 from, to, first = own;
        for (i64 r = row0; r < row1; first += tail(r), r++) {
          of(piece, r, q, q + here, from, to);
          if (from >= to || !tail(r)) continue;
          if (m.tiles()) tiles.set(to - from, true);
          f(from - q, to - from, first, tail(r));
        }
      };
      if (m.tiles()) tiles.set(here, true);
      const i64 far = m.tiles() ? 3 : NARROW ? 16 : 8;  // groups
      // While scores are computed the keys, then the values; while these are mixed the values, then the next piece's keys
      auto ahead = [&](i64 g) -> const bf16* {
        if (q > 0) return nullptr;
        if (m.tiles() && g < std::min(far, own)) fetch(values[g], size * 2);
        if (m.tiles() || g + far < met || own == 0) return keys[std::min(g + far, met - 1)];
        return values[std::min(g + far - met, own - 1)];
      };
      auto beyond = [&](i64 g) -> const bf16* {
        if (q > 0) return nullptr;
        if (g + far < own) return values[g + far];
        return m.tiles() || m.bytes || !after ? nullptr : after + (g + far - own) * size;
      };
      score(query + q * dims() * m.wide(), here, keys, own, scores, ahead);
      score(query + q * dims() * m.wide(), here, keys + own, met - own, scores + SPAN, [&](i64 g) { return ahead(own + g); });
      for (i64 i = 0; i < here && own < met; i++) {
        const float* lie = scores + i * LINE + SPAN;
        float* sorted = scores + i * LINE + own * 16;
        if (border < end) _mm512_storeu_ps(sorted, _mm512_loadu_ps(lie));  // of the prefix slots are positions
        ancestors(seg, (piece.first + q + i) / group(), [&](i64 rank, i64 where) {
          if (where >= border && where < (origin + groups) * 16) sorted[where - border] = lie[end + rank - border];
        });
      }
      bool none = true;  // none of these queries has met a key before
      for (i64 i = 0; i < here; i++) none &= all[q + i].sum == 0;
      float* to = none ? all[q].out : fresh;
      for (i64 i = 0; i < here; i++) {
        const i64 r = (piece.first + q + i) / group();
        some[i].out = to + i * dims();
        some[i].sum = softmax(seg, scores + i * LINE, shares + i * LINE * m.wide(), groups * 16, origin * 16, std::max(begin(r), lo),
                              std::min(position(r) + 1, hi), some[i].top);
      }
      memset(to, 0, here * dims() * 4);
      if (m.tiles()) tiles.set(here, true);
      mix(shares, m.tiles() || m.fused() ? here : std::max<i64>(here, FEW<HALVES>), values, own, to, beyond);  // as block_avx does
      tails([&](i64 from, i64 rows, i64 first, i64 many) {
        mix(shares + (from * LINE + own * 16) * m.wide(), rows, values + first, many, to + from * dims(), [](i64) { return nullptr; });
      });
      for (i64 i = 0; i < here; i++) {
        if (none) all[q + i] = some[i];
        else merge(all[q + i], some[i]);
      }
    }
  }

  // f(rank, place) of each candidate on a row's path, itself included
  template <class F>
  void ancestors(const Segment& seg, i64 row, F f) const {
    if (row < seg.given) return;
    for (uint64_t word = (uint64_t)p.word[seg.start + row]; word; word &= word - 1) {
      const i64 rank = __builtin_ctzll(word);
      f(rank, p.position[seg.start + seg.given + rank] + seg.shift);
    }
  }

  // Do the slots of a row's path follow one another?
  bool straight(const Segment& seg, i64 row) const {
    const uint64_t word = (uint64_t)p.word[seg.start + row];
    return row < seg.given || (word & (word + 1)) == 0;
  }
};
