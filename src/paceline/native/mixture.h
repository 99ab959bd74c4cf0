// A mixture of experts: rows are sorted by expert, so that each expert's weights are read once a pass. Its slow twin is Mixture
// in model/blocks.py.
//
// A row's result does not depend on other rows: its routes are its own, products add up over k in one order for any number of
// rows, and its experts are added in the order of their numbers, by the thread that has the column.
#pragma once

#include "attention.h"

struct Mixtures : Attention {
  using Attention::Attention;
  std::vector<i64> order, begins;  // rows' places among `chosen`, by expert; where each expert's begin

  float dot(const float* a, const float* w, i64 n) const {
    return _mm512_reduce_add_ps(strands(n, set(0), [&](__m512 sum, i64 i, __mmask16 k) {
      return _mm512_fmadd_ps(_mm512_maskz_loadu_ps(k, a + i), _mm512_maskz_loadu_ps(k, w + i), sum);
    }, [](__m512 x, __m512 y) { return _mm512_add_ps(x, y); }));
  }

  // The experts of one row, best first, and their weights
  void route(const Experts& e, i64 row) {
    const float* x = b.plain + row * m.hidden;
    float* share = room<float>(s.row, 3 * up(e.count, 16));
    float *worth = share + up(e.count, 16), *of_group = worth + up(e.count, 16), most = -INFINITY;
    for (i64 i = 0; i < e.count; i++) {
      share[i] = dot(x, e.router + i * m.hidden, m.hidden) + (e.router_bias ? e.router_bias[i] : 0);
      most = std::max(most, share[i]);
    }
    double total = 0;
    for (i64 i = 0; i < e.count; i++) {
      share[i] = e.sigmoid ? 1 / (1 + std::exp(-share[i])) : std::exp(share[i] - most);
      total += share[i];
    }
    for (i64 i = 0; i < e.count; i++) {
      if (!e.sigmoid) share[i] /= total;
      worth[i] = share[i] + (e.correction ? e.correction[i] : 0);
    }
    if (e.groups > 1) leave_groups(e, worth, of_group);
    double sum = 0;
    for (i64 a = 0; a < e.active; a++) {
      const i64 best = std::max_element(worth, worth + e.count) - worth;
      b.chosen[row * e.active + a] = best, b.share[row * e.active + a] = share[best];
      sum += share[best], worth[best] = -INFINITY;
    }
    for (i64 a = 0; a < e.active; a++) {
      float& it = b.share[row * e.active + a];
      if (e.normed) it /= sum + e.floor;
      it *= e.scale;
    }
  }

  void leave_groups(const Experts& e, float* worth, float* of_group) const {  // experts outside the best groups are out
    const i64 each = e.count / e.groups;
    for (i64 g = 0; g < e.groups; g++) {
      float best[2] = {-INFINITY, -INFINITY};
      for (i64 i = g * each; i < (g + 1) * each; i++)
        if (worth[i] > best[0]) best[1] = best[0], best[0] = worth[i];
        else best[1] = std::max(best[1], worth[i]);
      of_group[g] = best[0] + (e.group_best > 1 ? best[1] : 0);
    }
    std::vector<char> in(e.groups);
    for (i64 n = 0; n < e.active_groups; n++) {
      const i64 best = std::max_element(of_group, of_group + e.groups) - of_group;
      in[best] = 1, of_group[best] = -INFINITY;
    }
    for (i64 i = 0; i < e.count; i++)
      if (!in[i / each]) worth[i] = -INFINITY;
  }

  void sort(const Experts& e) {  // every thread for itself
    const i64 pairs = p.rows * e.active;
    begins.assign(e.count + 1, 0), order.resize(pairs);
    for (i64 i = 0; i < pairs; i++) begins[b.chosen[i] + 1]++;
    for (i64 i = 0; i < e.count; i++) {
      if (me == 0 && e.loads) e.loads[i] += begins[i + 1], e.loads[e.count] += begins[i + 1] > 0;
      begins[i + 1] += begins[i];
    }
    std::vector<i64> next(begins.begin(), begins.end() - 1);
    for (i64 i = 0; i < pairs; i++) order[next[b.chosen[i]]++] = i;
  }

  void gather(const Experts& e) {
    i64 first, last;
    share(p.rows * e.active, first, last);
    const Activations &from = b.normed, &to = b.routed;
    for (i64 i = first; i < last; i++) {
      const i64 row = order[i] / e.active;
      memcpy(to.data + i * to.stride, from.data + row * from.stride, to.stride);
      const i64 scales = std::max<i64>(1, to.groups);
      if (m.int8) memcpy(to.scale + i * scales, from.scale + row * scales, scales * 4);
      if (!to.groups) continue;
      memcpy(to.sums + i * to.groups, from.sums + row * to.groups, to.groups * 4);
      memcpy(to.wholes + i * wholes_each(to.groups), from.wholes + row * wholes_each(to.groups), wholes_each(to.groups) * 2);
    }
  }

  // Gated inner numbers of rows: as they are multiplied, or in floats where these are rounded by row
  void raise_gated(const Linear& l, const Activations& x, i64 rows, i64 width, const Activations& a, float* y) {
    const bool int8 = m.int8, floats = m.fused();
    const i64 how = m.activation;
    const float slope = m.slope, limit = m.limit;
    linear(l, x, rows, [=](i64 row, i64 column, __m512 gate, __m512 raised) {
      const __m512 h = how == CLAMPED ? clamped(gate, raised, slope, limit) : _mm512_mul_ps(activated(gate, how), raised);
      const __mmask16 k = below(width - column / 2);
      if (int8) _mm512_mask_storeu_ps(y + row * width + column / 2, k, h);
      else keep(a.data + row * a.stride, column / 2, floats, h, k);
    });
  }

  template <class Weight>
  void add_weighed(const Linear& l, const Activations& x, i64 rows, Weight of) {  // of(row): where it is added, and how much
    const i64 n = m.hidden;
    linear(l, x, rows, [=](i64 row, i64 column, __m512 low, __m512 high) {
      const auto [to, weight] = of(row);
      float* at = b.sum + to * n + column;
      const __mmask16 m0 = below(n - column), m1 = below(n - column - 16);
      _mm512_mask_storeu_ps(at, m0, _mm512_fmadd_ps(low, set(weight), _mm512_maskz_loadu_ps(m0, at)));
      _mm512_mask_storeu_ps(at + 16, m1, _mm512_fmadd_ps(high, set(weight), _mm512_maskz_loadu_ps(m1, at + 16)));
    });
  }

  // As `scaled`, of any of the experts: rows are rounded for all of them alike
  i64 scaled_for(const Experts& e, const Linear* each) const {
    i64 groups = 0;
    for (i64 i = 0; i < e.count; i++) groups = std::max(groups, scaled(each[i]));
    return groups;
  }

  void pack_inner(const float* y, i64 rows, i64 width, const Activations& a, i64 groups) {
    i64 first, last;
    share(rows, first, last);
    for (i64 r = first; r < last; r++) pack(y + r * width, width, a, r, groups);
  }

  void mixture(const Layer& l) {
    const Experts& e = *l.experts;
    const i64 rows = p.rows, pairs = rows * e.active;
    const bool shared = e.shared_down.weight;
    float *inner = b.wide, *of_shared = b.wide + pairs * e.width;
    const i64 groups = std::max(scaled_for(e, e.gate_up), shared ? scaled(e.shared_gate_up) : 0);
    norm_rows(b.x, m.parallel ? l.attention_norm : l.ffn_norm, rows, nullptr, b.plain, groups);
    i64 first, last;
    share(rows, first, last);
    for (i64 r = first; r < last; r++) route(e, r);
    memset(b.sum + first * m.hidden, 0, (last - first) * m.hidden * 4);
    done(NORM);
    sort(e);
    gather(e);
    done(NORM);
    auto each = [&](auto f) {
      for (i64 i = 0; i < e.count; i++)
        if (begins[i + 1] > begins[i]) f(i, begins[i], begins[i + 1] - begins[i]);
    };
    each([&](i64 i, i64 at, i64 n) {
      raise_gated(e.gate_up[i], b.routed.from(at), n, e.width, b.inner.from(at), inner + at * e.width);
    });
    if (shared) raise_gated(e.shared_gate_up, b.normed, rows, e.shared, b.shared, of_shared);
    done(LINEAR);
    if (m.int8) {
      pack_inner(inner, pairs, e.width, b.inner, scaled_for(e, e.down));
      if (shared) pack_inner(of_shared, rows, e.shared, b.shared, scaled(e.shared_down));
      done(NORM);
    }
    each([&](i64 i, i64 at, i64 n) {
      add_weighed(e.down[i], b.inner.from(at), n, [&](i64 row) {
        const i64 pair = order[at + row];
        return std::pair<i64, float>(pair / e.active, b.share[pair]);
      });
    });
    if (shared)
      add_weighed(e.shared_down, b.shared, rows, [&](i64 row) {
        const float* x = b.plain + row * m.hidden;
        return std::pair<i64, float>(row, e.shared_gate ? 1 / (1 + std::exp(-dot(x, e.shared_gate, m.hidden))) : 1.f);
      });
    done(LINEAR);
    if (l.ffn_post.weight) {
      add_normed(b.sum, l.ffn_post);
    } else {
      const __m512 scale = set((float)m.residual_scale);
      for (i64 r = first; r < last; r++)
        ::each(m.hidden, [&](i64 i, __mmask16 k) {
          float* at = b.x + r * m.hidden + i;
          put(at, _mm512_fmadd_ps(_mm512_maskz_loadu_ps(k, b.sum + r * m.hidden + i), scale, _mm512_maskz_loadu_ps(k, at)), k);
        });
    }
    done(NORM);
  }
};
