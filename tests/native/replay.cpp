// A pass that Python has written to a file, once more on another CPU: regions of memory with their addresses, pointers in the first
// `structs` of them moved along with these; the last region is where the logits go. Writes them to the second file.
#include <cstdio>
#include <cstdlib>

#include "../../src/paceline/native/decoder.cpp"

struct Region {
  i64 address, size;
  uint8_t* data;
};

static i64 number(FILE* file) {
  i64 x;
  if (fread(&x, 8, 1, file) != 1) abort();
  return x;
}

int main(int, char** names) {
  FILE* file = fopen(names[1], "rb");
  const i64 count = number(file), structs = number(file), linear = number(file);
  std::vector<Region> regions(count);
  for (Region& it : regions) {
    it.address = number(file), it.size = number(file);
    it.data = (uint8_t*)aligned_alloc(64, up(it.size, 64) + 16384);  // what is fetched beyond an end is not read
    if (it.size && fread(it.data, it.size, 1, file) != 1) abort();
  }
  for (i64 s = 0; s < structs; s++)
    for (i64 at = 0; at + 8 <= regions[s].size; at += 8) {
      i64 value;
      memcpy(&value, regions[s].data + at, 8);
      for (const Region& it : regions)
        if (value >= it.address && value < it.address + it.size) {
          value = (i64)it.data + value - it.address;
          memcpy(regions[s].data + at, &value, 8);
          break;
        }
    }
  const Region& out = regions.back();
  if (linear) paceline_linear((const Model*)regions[0].data, (const float*)regions[1].data, linear, (float*)out.data);
  else paceline_forward((const Model*)regions[0].data, (const Pass*)regions[1].data);
  file = fopen(names[2], "wb");
  fwrite(out.data, out.size, 1, file);
  fclose(file);
}
