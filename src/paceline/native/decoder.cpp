// The decoder's forward pass on a CPU with AVX-512 BF16, or AMX where it is (`Unit`): one call a pass, no Python between layers.
// model/decoder.py is its slow twin.
//
// A row's result has the same bits whatever other rows are in the pass and however its text is cut into passes: linear
// layers add up over k in one order for any number of rows, and attention over keys by absolute position, 16 at a time,
// in spans of 1,024 that are merged in order.
//
//   linear weights  [out/32][in/step][2][16][16][e]   step = 32 bfloat16 (e = 2) or 64 int8 (e = 4): one tile of 16 outputs
//                                                     is 1 KB, read once for all rows
//                   or in groups of 32 with a scale and a low each: grouped.h
//   keys            [slot/512][layer][kv head][32][dim/2][16 slots][2]        a text's K/V lie together: memory is taken
//   values          [slot/512][layer][kv head][32][8 pairs of slots][dim][2]  in huge pages, not one a layer and head
//
//                   in 8 bits: the same of int8, and their scales [slot/512][layer][kv head][32][dim/32][16 slots]
//
// base.h, product.h, grouped.h, linear.h, rows.h, cache.h, attention.h, mixture.h, recurrence.h: a thread's part of a pass, from the
// bottom up;
// draw.h: tokens; draft.h: whole drafts; run.h: several passes in one call, with what proposer.h describes drafting
// between them.

#include <sys/syscall.h>
#include <unistd.h>

#include "recurrence.h"

struct Worker : Recurrences {
  using Recurrences::Recurrences;

  void layer(i64 index) {
    const Layer& l = m.layer[index];
    const i64 how = p.parts ? p.parts[index] : ATTENDS | FEEDS;
    if (how & BEGINS) {
      if (me == 0) memcpy(b.entry, b.x, p.rows * m.hidden * 4);
      done(EMBED);
    }
    if (how & ATTENDS) attention(index, l, how & SHARES ? b.entry : b.x);
    if (how & FEEDS && l.experts) mixture(l);
    else if (how & FEEDS && l.down.weight) feed(index, l, m.parallel && how & ATTENDS);
  }

  void attention(i64 index, const Layer& l, const float* x) {
    i64 groups = scaled(l.qkv, l.value);
    if (m.parallel) groups = std::max(groups, scaled(l.gate_up));
    norm_rows(x, l.attention_norm, p.rows, nullptr, nullptr, groups);
    lower(index, QKV, b.normed, true);
    if (l.value.weight) lower(index, VALUE, b.normed, false);
    done(NORM);
    if (l.recurrence) recurred(index, l);
    else attended(index, l);
  }

  void recurred(i64 index, const Layer& l) {  // the recurrence over what lies in `normed`
    const Recurrence& r = *l.recurrence;
    with(index, QKV), store(l.qkv, b.normed, p.rows, b.wide, l.qkv.out);
    done(LINEAR);
    recur(r);
    pack_rows(b.scanned, r.width, b.mixed, scaled(l.out));
    lower(index, OUT, b.mixed, true);
    done(NORM);
    with(index, OUT);
    contribute(l.out, b.mixed, l.attention_post);
  }

  // Queries, keys and values; and the gates behind them
  void project(const Layer& l, i64 width) {
    const i64 rows = p.rows, own = m.gates ? m.heads * m.head_dim : 0, end = l.qkv.out - own;
    if (!own) return store(l.qkv, b.normed, rows, b.wide, width);
    float *wide = b.wide, *gates = b.gates;
    linear(l.qkv, b.normed, rows, [=](i64 row, i64 column, __m512 low, __m512 high) {
      auto part = [&](i64 column, __m512 y) {
        const i64 mine = std::min<i64>(16, end - column), others = std::min<i64>(16, end + own - column);
        if (mine > 0) put(wide + row * width + column, y, below(mine));
        if (mine <= 0) put(gates + row * own + column - end, y, below(others));
        else if (mine < others) {
          alignas(64) float both[16];
          _mm512_storeu_ps(both, y);
          std::copy(both + mine, both + others, gates + row * own);
        }
      };
      part(column, low), part(column + 16, high);
    });
  }

  void attended(i64 index, const Layer& l) {  // attention of what lies in `normed`
    const i64 rows = p.rows;
    expect(index);
    const i64 all_heads = (m.heads + 2 * m.kv_heads) * m.head_dim;
    with(index, QKV), project(l, all_heads);
    if (l.value.weight) with(index, VALUE), store(l.value, b.normed, rows, b.wide + all_heads - l.value.out, all_heads);
    done(LINEAR);
    if (m.joint && l.head_norm) {
      norm_heads(l);
      done(NORM);
    }
    rope(l, index);
    done(ROPE);
    for (i64 i = mine.first; i < mine.last; i++)
      attend(b.pieces[i], index, l, i + 1 < mine.last ? first_keys(b.pieces[i + 1], index) : nullptr);
    done(ATTENTION);
    if (b.spans > 0) {
      for (i64 i = mine.first; i < mine.last; i++)
        if (b.pieces[i].join) join(b.pieces[i], l);
      done(ATTENTION);
    }
    if (m.int8) {
      pack_rows(b.wide, m.heads * m.head_dim, b.mixed, scaled(l.out));
      lower(index, OUT, b.mixed, true);
      done(NORM);
    } else if (lower(index, OUT, b.mixed, false)) done(LINEAR);
    with(index, OUT);
    contribute(l.out, b.mixed, l.attention_post);
  }

  void feed(i64 index, const Layer& l, bool normed) {  // normed: the attention has left what both of them read
    const i64 rows = p.rows;
    if (!normed) {
      norm_rows(b.x, m.parallel ? l.attention_norm : l.ffn_norm, rows, nullptr, nullptr, scaled(l.gate_up));
      lower(index, GATE_UP, b.normed, true);
      done(NORM);
    } else if (lower(index, GATE_UP, b.normed, false)) done(LINEAR);
    const bool int8 = m.int8, floats = m.fused();  // copies, so that the loops below keep them in registers
    const i64 width = l.down.in, how = m.activation;
    const Activations a = b.gated;
    float* y = b.wide;
    auto hold = [=](i64 row, i64 column, __m512 h) {
      const __mmask16 k = below(width - column);
      if (int8) _mm512_mask_storeu_ps(y + row * width + column, k, h);
      else keep(a.data + row * a.stride, column, floats, h, k);
    };
    with(index, GATE_UP);
    if (m.gated)
      linear(l.gate_up, b.normed, rows, [=](i64 row, i64 column, __m512 gate, __m512 raised) {
        hold(row, column / 2, _mm512_mul_ps(activated(gate, how), raised));
      });
    else
      linear(l.gate_up, b.normed, rows, [=](i64 row, i64 column, __m512 low, __m512 high) {
        hold(row, column, activated(low, how)), hold(row, column + 16, activated(high, how));
      });
    done(LINEAR);
    if (int8) {
      pack_rows(y, width, a, scaled(l.down));
      lower(index, DOWN, a, true);
      done(NORM);
    } else if (lower(index, DOWN, a, false)) done(LINEAR);
    with(index, DOWN);
    contribute(l.down, b.gated, l.ffn_post);
  }

  void contribute(const Linear& l, const Activations& a, const Norm& post) {  // x += scale post(l(a))
    if (!post.weight) {
      add(l, a, p.rows, b.x, m.hidden, (float)m.residual_scale);
      done(LINEAR);
      return;
    }
    store(l, a, p.rows, b.wide, m.hidden);
    done(LINEAR);
    add_normed(b.wide, post);
    done(NORM);
  }

  void replay() {  // recorded rows, through all recurrences
    for (i64 i = 0; i < m.layers; i++)
      if (m.layer[i].recurrence) recur(*m.layer[i].recurrence), done(ATTENTION);
  }

  void run() {
    if (p.embed) embed();
    done(EMBED);
    for (i64 i = p.first; i < p.last; i++) {
      if (p.inputs && p.inputs[i] && me == 0) memcpy(p.inputs[i], b.x, p.rows * m.hidden * 4);
      if (p.inputs && p.inputs[i]) done(EMBED);
      layer(i);
    }
    if (p.head) {
      if (p.post_norm) {
        norm_rows(b.x, m.norm, p.rows, nullptr, p.post_norm, scaled(m.head));
        done(NORM);
      }
      const bool narrow = m.words && (m.drafts || p.narrow);
      const Linear& head = narrow ? m.narrow : m.head;
      norm_rows(b.x, m.norm, p.wanted, p.want, nullptr, scaled(head));
      done(NORM);
      store(head, b.normed, p.wanted, p.logits, m.vocab, (float)m.logit_cap, (float)m.logit_scale);
      done(HEAD);
      if (!narrow) return;
      for (i64 r = me; r < p.wanted; r += all) spread(p.logits + r * m.vocab);
      done(HEAD);
    }
  }

  // Logits of a draft vocabulary to their places among all; those of other tokens are -inf. From the end, as no token stands
  // before its rank
  void spread(float* z) const {
    i64 end = m.vocab;
    for (i64 j = m.words - 1; j >= 0; j--) {
      const i64 at = m.word[j];
      const float x = z[j];
      std::fill(z + at + 1, z + end, -INFINITY);
      z[at] = x, end = at;
    }
    std::fill(z, z + end, -INFINITY);
  }
};

// -- doors ------------------------------------------------------------------------------------------------------------------

struct Arena {  // one per calling thread; grows to the largest pass
  Room memory;
  size_t used = 0;  // lines
  uint8_t* take(size_t bytes) {
    uint8_t* at = memory.empty() ? nullptr : memory.data()->bytes + used * 64;
    used += (bytes + 63) / 64;
    return at;
  }
};

static void lay_out(Arena& arena, const Model& m, const Pass& p, Buffers& b) {
  const i64 rows = up(p.rows, 32), dims = up(m.head_dim, 32), group = m.heads / m.kv_heads;
  const i64 mixed = m.heads * m.head_dim, widest = std::max({(m.heads + 2 * m.kv_heads) * m.head_dim, m.hidden, m.ffn, m.projected});
  const i64 each = m.int8 ? 1 : m.wide(), step = (m.int8 ? 64 : 32) * each;  // bytes: of a number, and of a whole step
  auto activations = [&](i64 width, i64 of) {
    Activations a;
    const i64 rows = up(of, 32);
    a.used = up(width * each, step);
    a.stride = a.used + (m.grouped() && a.used % 512 == 0 ? 64 : 0);  // else many rows meet in few sets of the first cache
    a.data = arena.take(rows * a.stride);
    a.groups = m.grouped() ? up(width, GROUP) / GROUP : 0;
    a.scale = (float*)arena.take(rows * std::max<i64>(1, a.groups) * 4);
    a.sums = (float*)arena.take(rows * a.groups * 4);
    a.wholes = (int16_t*)arena.take(m.grouped() ? rows * wholes_each(a.groups) * 2 + 16 : 0);  // tiles read a record's whole line
    return a;
  };
  const i64 pairs = p.rows * m.active;
  arena.used = 0;
  b.x = p.hidden ? p.hidden : (float*)arena.take(p.rows * m.hidden * 4);
  b.entry = (float*)arena.take(p.parts ? p.rows * m.hidden * 4 : 0);
  b.wide = (float*)arena.take(std::max(rows * widest, pairs * m.routed + p.rows * m.shared) * 4);
  b.query = arena.take((m.kv_heads * p.rows * group + 16) * dims * m.wide());
  const i64 scanned = p.scan ? p.scan->rows : 0;
  b.gates = (float*)arena.take(m.gates ? p.rows * mixed * 4 : 0);
  b.brought = (float*)arena.take(p.rows * m.hidden * 4 * (scanned > 0)), b.scanned = (float*)arena.take(p.rows * m.scanned * 4);
  b.convolved = (float*)arena.take(scanned * m.channels * 4), b.factors = (float*)arena.take(scanned * 2 * m.coefficients * 4);
  b.parts = (float*)arena.take(m.heads * p.rows * b.spans * (16 + dims) * 4);
  for (bf16*& low : b.low) low = (bf16*)arena.take(b.deltas.empty() ? 0 : p.rows * m.rank * 2);
  b.normed = activations(m.hidden, p.rows), b.mixed = activations(std::max(mixed, m.scanned), p.rows), b.gated = activations(m.ffn, p.rows);
  const i64 spare = pairs ? pairs + 32 : 0;  // an expert's last panel reads beyond its rows
  b.routed = activations(m.hidden, spare), b.inner = activations(m.routed, spare), b.shared = activations(m.shared, pairs ? p.rows : 0);
  b.plain = (float*)arena.take(pairs ? p.rows * m.hidden * 4 : 0), b.sum = (float*)arena.take(pairs ? p.rows * m.hidden * 4 : 0);
  b.share = (float*)arena.take(pairs * 4), b.chosen = (i64*)arena.take(pairs * 8);
  if (arena.memory.size() < arena.used) return;
  auto clear = [&](const Activations& a, i64 of) {  // padding that is never written must be finite
    for (i64 r = 0; r < up(of, 32) && a.stride; r++) memset(a.data + r * a.stride + a.used - step, 0, step);
  };
  for (const Activations& a : {b.normed, b.mixed, b.gated}) clear(a, p.rows);
  clear(b.routed, spare), clear(b.inner, spare), clear(b.shared, pairs ? p.rows : 0);
}

// Asks the system for tiles: ARCH_REQ_XCOMP_PERM, tile data. 0: granted.
#ifdef PACELINE_NARROW
extern "C" int paceline_permit_tiles() { return -1; }
#else
extern "C" int paceline_permit_tiles() { return (int)syscall(SYS_arch_prctl, 0x1023, 18); }
#endif

static thread_local Arena arena;

static void make_room(const Model& m, const Pass& p, Buffers& b) {
  lay_out(arena, m, p, b);
  room<CacheLine>(arena.memory, arena.used);
  lay_out(arena, m, p, b);
}

// Pieces of up to `queries`, each of some spans, or, if few, of one
static void cut(const Model& m, const Pass& p, Buffers& b, i64 window, i64 queries, bool few) {
  const i64 group = m.heads / m.kv_heads;
  b.pieces.clear();
  for (i64 head = 0; head < m.kv_heads; head++)
    for (i64 s = 0; s < p.segments; s++) {
      const Segment& seg = p.segment[s];
      for (i64 q = 0, n = (seg.given + seg.nodes) * group; q < n; q += queries) {
        const i64 last = std::min(q + queries, n), panels = up(last - q, 16) / 16;
        i64 lo = INT64_MAX, hi = 0;
        for (i64 r = q / group; r <= (last - 1) / group; r++) {
          const i64 at = p.position[seg.start + r] + seg.shift;
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

// Does no thread have more than an eighth too much?
static bool even(const Buffers& b, i64 threads) {
  i64 total = 0, most = 0;
  for (const Piece& piece : b.pieces) total += piece.work;
  for (i64 me = 0; me < threads; me++) {
    const Pieces mine(b.pieces, me, threads);
    i64 work = 0;
    for (i64 i = mine.first; i < mine.last; i++) work += b.pieces[i].work;
    most = std::max(most, work);
  }
  return most * threads * 8 <= total * 9;
}

// Pieces by head, as `linear` shares out its columns and `rope` its rows: a thread then finds most in its own cache. As large
// as leaves the threads about the same work, as each piece reads its keys and values again
static void plan(const Model& m, const Pass& p, Buffers& b) {
  for (i64 s = 0; s < p.segments; s++) {
    const Segment& seg = p.segment[s];
    bool chain = true;
    for (i64 j = 0; j < seg.nodes; j++)
      chain &= (uint64_t)p.word[seg.start + seg.given + j] == (j == 63 ? ~0ull : (1ull << (j + 1)) - 1);
    b.chain.push_back(chain);
  }
  i64 window = 0;  // the widest; 0: some layer sees everything
  for (i64 i = p.first; i < p.last; i++) {
    if (m.layer[i].recurrence) continue;
    if (!m.layer[i].window) { window = 0; break; }
    window = std::max(window, m.layer[i].window);
  }
  const bool few = p.rows * m.heads <= 4 * QUERIES * m.threads;
  i64 queries = QUERIES;
  for (cut(m, p, b, window, queries, few); few && queries > 16 && !even(b, m.threads);) cut(m, p, b, window, queries /= 2, few);
}

static void forward(const Model& m, const Pass& p) {
  Buffers b;
  const Walk walk(p.scan);
  b.walk = &walk;
  plan(m, p, b);
  adapt(m, p, b);
  make_room(m, p, b);
  parallel(m.threads, [&] { Worker(m, p, b).run(); });
}

extern "C" void paceline_forward(const Model* m, const Pass* p) { forward(*m, *p); }

// Computes recorded rows again, without rows of its own, for the states that they leave
extern "C" void paceline_replay(const Model* m, const Scan* scan) {
  Pass p = {};
  p.scan = scan;
  Buffers b;
  const Walk walk(scan);
  b.walk = &walk;
  make_room(*m, p, b);
  parallel(m->threads, [&] { Worker(*m, p, b).replay(); });
}

static void move_bytes(const Model& m, i64 count, const i64* source, const i64* target) {
  const i64 dims = up(m.head_dim, 32), heads = m.kept * m.kv_heads, size = 16 * dims, scales = dims / 32;
  std::vector<int8_t> held(count * dims * 2);
  std::vector<bf16> by(count * scales * 2);
  for (i64 head = 0; head < heads; head++) {
    auto each = [&](const i64* slots, auto f) {
      for (i64 i = 0; i < count; i++) {
        const i64 lane = slots[i] % 16, group = place(slots[i] / 16, head, heads);
        int8_t *k = (int8_t*)m.keys + group * size + lane * 2, *v = (int8_t*)m.values + group * size + lane / 2 * dims * 2 + lane % 2;
        for (i64 d = 0; d < dims; d++) f(held[i * 2 * dims + d], k[d / 2 * 32 + d % 2]), f(held[(i * 2 + 1) * dims + d], v[d * 2]);
        for (i64 s = 0; s < scales; s++) {
          f(by[i * 2 * scales + s], m.key_scales[(group * scales + s) * 16 + lane]);
          f(by[(i * 2 + 1) * scales + s], m.value_scales[(group * scales + s) * 16 + lane]);
        }
      }
    };
    each(source, [](auto& mine, auto& pool) { mine = pool; });
    each(target, [](auto& mine, auto& pool) { pool = mine; });
  }
}

// Copies keys and values of slots source[i] to target[i] in every layer and head; all are read before any is written
extern "C" void paceline_move(const Model* m, i64 count, const i64* source, const i64* target) {
  const i64 dims = up(m->head_dim, 32), heads = m->kept * m->kv_heads, size = 16 * dims;
  if (m->bytes) {
    move_bytes(*m, count, source, target);
    return;
  }
  std::vector<bf16> held(count * dims * 2);
  for (i64 head = 0; head < heads; head++) {
    auto each = [&](const i64* slots, auto f) {
      for (i64 i = 0; i < count; i++) {
        const i64 lane = slots[i] % 16, at = place(slots[i] / 16, head, heads) * size;
        bf16 *k = m->keys + at + lane * 2, *v = m->values + at + lane / 2 * dims * 2 + lane % 2;
        for (i64 d = 0; d < dims; d++) f(held[i * 2 * dims + d], k[d / 2 * 32 + d % 2]), f(held[(i * 2 + 1) * dims + d], v[d * 2]);
      }
    };
    each(source, [](bf16& mine, bf16& pool) { mine = pool; });
    each(target, [](bf16& mine, bf16& pool) { pool = mine; });
  }
}

// One layer alone: `head` of a model, from x [rows][in] to y [rows][out]
static void multiply(const Model& m, const float* x, i64 rows, float* y) {
  Model alone = m;
  alone.hidden = m.head.in, alone.heads = alone.kv_heads = alone.head_dim = alone.ffn = 1, alone.active = 0;
  alone.gates = alone.projected = alone.channels = alone.scanned = alone.coefficients = 0;
  Pass p = {};
  p.rows = rows;
  Buffers b;
  make_room(alone, p, b);
  parallel(m.threads, [&] {
    Worker w(alone, p, b);
    w.pack_rows(x, m.head.in, b.normed, w.scaled(m.head));
    w.done(NORM);
    w.store(m.head, b.normed, rows, y, m.head.out);
  });
}

extern "C" void paceline_linear(const Model* m, const float* x, i64 rows, float* y) { multiply(*m, x, rows, y); }

#include "measure.h"

// Embeddings [tokens][hidden]
static void embed(const Model& m, const std::vector<i64>& tokens, float* to) {
  Pass p = {};
  p.rows = tokens.size(), p.token = tokens.data();
  Buffers b;
  b.x = to;
  Worker(m, p, b).embed();
}

#include "propose_feature.h"
#include "propose_model.h"
#include "propose_head.h"
#include "propose_merged.h"
#include "propose_ngram.h"
#include "propose_tree.h"
#include "run.h"
