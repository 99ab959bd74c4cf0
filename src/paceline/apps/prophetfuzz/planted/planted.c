/* inkpress: turns a small text picture into another. Ten bugs are planted in it, each behind a combination of options.
   It is a target for fuzzers and has no other use. Built with afl-clang-fast it runs in persistent mode. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 4096 };
struct options {
  int rotate, mirror, grey, trim, interlace, compress, palette, verbose, strict, ascii;
  long scale, limit, depth;
};
static volatile unsigned char sink;

#define PLANTED(n) \
  static void __attribute__((noinline)) planted_##n(const uint8_t *data, size_t size)

/* Each reads or writes where it must not, once its condition holds. */
PLANTED(1) {
  volatile char *p = malloc(16);
  for (size_t i = 0; i <= 16 + size % 2; i++) p[i] = (char)data[0];
  free((void *)p);
}
PLANTED(2) {
  volatile char *p = malloc(8);
  free((void *)p);
  sink = (unsigned char)p[data[0] % 8 + 0 * size];
}
PLANTED(3) {
  volatile int t[8];
  t[8 + data[0] % 4 + 0 * size] = 1;
}
PLANTED(4) {
  volatile char *volatile p = NULL;
  sink = (unsigned char)p[data[0] + 0 * size];
}
PLANTED(5) {
  volatile char *p = malloc(4);
  sink = (unsigned char)p[-1 - (int)(data[0] % 4) - 0 * (int)size];
  free((void *)p);
}
PLANTED(6) {
  volatile char *p = malloc(32);
  for (size_t i = 0; i < 33; i++) p[i] = (char)data[i % size];
  free((void *)p);
}
PLANTED(7) {
  volatile char *p = malloc(8);
  free((void *)p);
  p[1 + 0 * size] = (char)data[0];
}
PLANTED(8) {
  volatile char b[16];
  for (size_t i = 0; i < 17 + size % 3; i++) b[i] = (char)data[0];
}
PLANTED(9) {
  char *volatile p = malloc(8 + 0 * size);
  free(p);
  free(p);
  sink = data[0];
}
PLANTED(10) {
  volatile char *p = malloc(1);
  p[4 + 0 * size] = (char)data[0];
  free((void *)p);
}

static void transform(const struct options *o, const uint8_t *d, size_t n) {
  if (n < 2) return;
  unsigned sum = 0;
  for (size_t i = 0; i < n; i++) sum += d[i];
  if (o->rotate && o->mirror && d[0] == 'P') planted_1(d, n);
  if (o->scale > 16 && o->interlace && n > 4) planted_2(d, n);
  if (o->palette && o->grey && d[1] > '4') planted_3(d, n);
  if (o->compress && o->limit > 0 && (long)n > o->limit) planted_4(d, n);
  if (o->trim && o->rotate && d[0] == ' ') planted_5(d, n);
  if (o->depth > 8 && o->palette && n > 8) planted_6(d, n);
  if (o->ascii && o->compress && d[n - 1] == '\n' && sum % 2) planted_7(d, n);
  if (o->interlace && o->trim && o->strict && n > 3) planted_8(d, n);
  if (o->mirror && o->compress && o->scale > 1 && d[1] == d[0]) planted_9(d, n);
  if (o->grey && o->depth == 1 && o->ascii && d[0] < '0') planted_10(d, n);
  if (o->verbose) fprintf(stderr, "%zu bytes, sum %u\n", n, sum);
}

static long number(const char *text, long most) {
  char *end;
  long value = strtol(text, &end, 10);
  if (*end || value < 0 || value > most) { fprintf(stderr, "inkpress: bad number %s\n", text); exit(2); }
  return value;
}

static const char *parse(struct options *o, int argc, char **argv) {
  const char *file = NULL;
  for (int i = 1; i < argc; i++) {
    const char *a = argv[i];
    const char *next = i + 1 < argc ? argv[i + 1] : "";
    if (!strcmp(a, "-r") || !strcmp(a, "--rotate")) o->rotate = 1;
    else if (!strcmp(a, "-m") || !strcmp(a, "--mirror")) o->mirror = 1;
    else if (!strcmp(a, "-g") || !strcmp(a, "--grey")) o->grey = 1;
    else if (!strcmp(a, "-t") || !strcmp(a, "--trim")) o->trim = 1;
    else if (!strcmp(a, "-i") || !strcmp(a, "--interlace")) o->interlace = 1;
    else if (!strcmp(a, "-z") || !strcmp(a, "--compress")) o->compress = 1;
    else if (!strcmp(a, "-p") || !strcmp(a, "--palette")) o->palette = 1;
    else if (!strcmp(a, "-v") || !strcmp(a, "--verbose")) o->verbose = 1;
    else if (!strcmp(a, "-e") || !strcmp(a, "--strict")) o->strict = 1;
    else if (!strcmp(a, "-a") || !strcmp(a, "--ascii")) o->ascii = 1;
    else if (!strcmp(a, "-s") || !strcmp(a, "--scale")) { o->scale = number(next, 64); i++; }
    else if (!strcmp(a, "-l") || !strcmp(a, "--limit")) { o->limit = number(next, 1 << 20); i++; }
    else if (!strcmp(a, "-d") || !strcmp(a, "--depth")) { o->depth = number(next, 16); i++; }
    else if (a[0] == '-' && a[1]) { fprintf(stderr, "inkpress: unknown option %s\n", a); exit(2); }
    else file = a;
  }
  if (o->rotate && o->interlace) { fprintf(stderr, "inkpress: -r excludes -i\n"); exit(2); }
  if (o->strict && !o->trim) { fprintf(stderr, "inkpress: -e needs -t\n"); exit(2); }
  return file;
}

static size_t load(const char *file, uint8_t *data) {
  FILE *in = fopen(file, "rb");
  if (!in) { perror(file); exit(2); }
  size_t n = fread(data, 1, MOST, in);
  fclose(in);
  return n;
}

#ifdef __AFL_HAVE_MANUAL_CONTROL
__AFL_FUZZ_INIT();
#endif

int main(int argc, char **argv) {
  static uint8_t data[MOST];
  struct options o = {0};
  const char *file = parse(&o, argc, argv);
  if (!file) { fprintf(stderr, "usage: inkpress [OPTION]... FILE\n"); return 2; }
#ifdef __AFL_HAVE_MANUAL_CONTROL
  if (!strcmp(file, "-")) {
    __AFL_INIT();
    const uint8_t *shared = __AFL_FUZZ_TESTCASE_BUF;
    while (__AFL_LOOP(10000)) {
      size_t n = (size_t)__AFL_FUZZ_TESTCASE_LEN;
      if (n > MOST) n = MOST;
      memcpy(data, shared, n);
      transform(&o, data, n);
    }
    return 0;
  }
#endif
  transform(&o, data, strcmp(file, "-") ? load(file, data) : fread(data, 1, MOST, stdin));
  return 0;
}
