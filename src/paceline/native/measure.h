// What a kernel takes, in ticks of the CPU's own counter. Included by decoder.cpp.
#pragma once

static inline uint64_t ticks() {
#ifdef __aarch64__
  uint64_t now;
  asm volatile("mrs %0, cntvct_el0" : "=r"(now));
  return now;
#else
  return __rdtsc();
#endif
}

// The least of `repeats` products of the first block of `head` with `rows` rows, from the caches; by one thread, without tiles
extern "C" double paceline_ticks(const Model* m, i64 rows, i64 repeats) {
  const Linear& l = m->head;
  Model alone = *m;
  alone.hidden = l.in, alone.heads = alone.kv_heads = alone.head_dim = alone.ffn = 1;
  Pass p = {};
  p.rows = rows;
  Buffers b;
  make_room(alone, p, b);
  std::vector<float> x(rows * l.in), sums(std::max<i64>(rows, 32) * 32);
  for (i64 i = 0; i < rows * l.in; i++) x[i] = (float)(i * 37 % 101 - 50);
  Worker w(alone, p, b);
  for (i64 r = 0; r < rows; r++) w.pack(x.data() + r * l.in, l.in, b.normed, r, w.scaled(l));
  uint64_t best = ~0ull;
  for (i64 i = 0; i < repeats; i++) {
    const uint64_t start = ticks();
    block_grouped(l, l.weight, b.normed.data, b.normed.stride, b.normed.of(0), up(l.in, GROUP) / GROUP, rows, sums.data(), nullptr);
    best = std::min(best, ticks() - start);
  }
  return (double)best;
}
