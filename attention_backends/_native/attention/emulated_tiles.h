// The tile registers in plain C++, so that the arithmetic around them can be tested on CPUs without AMX.
#pragma once

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

namespace sg {

struct EmulatedTile {
  float words[16][16];
};

inline EmulatedTile& emulated_tile(int index) {
  static thread_local EmulatedTile tiles[8];
  return tiles[index];
}

inline bool& emulated_tiles_open() {
  static thread_local bool open = false;
  return open;
}

inline void open_tiles() { emulated_tiles_open() = true; }
inline void close_tiles() { emulated_tiles_open() = false; }

// As the CPU would refuse an instruction without a configuration.
inline EmulatedTile& checked_tile(int index) {
  if (!emulated_tiles_open()) __builtin_trap();
  return emulated_tile(index);
}

inline void emulated_zero(int tile) { memset(&checked_tile(tile), 0, sizeof(EmulatedTile)); }

inline void emulated_load(int tile, const float* p, int64_t row_bytes) {
  for (int i = 0; i < 16; i++) memcpy(checked_tile(tile).words[i], (const char*)p + i * row_bytes, 64);
}

inline void emulated_store(int tile, float* p, int64_t row_bytes) {
  for (int i = 0; i < 16; i++) memcpy((char*)p + i * row_bytes, checked_tile(tile).words[i], 64);
}

inline float emulated_half(float word, int half) {
  uint32_t bits;
  memcpy(&bits, &word, 4);
  bits = half ? bits & 0xffff0000u : bits << 16;
  memcpy(&word, &bits, 4);
  return word;
}

inline void emulated_multiply(int sum, int a, int b) {
  EmulatedTile &c = checked_tile(sum), &left = checked_tile(a), &right = checked_tile(b);
  for (int half = 0; half < 2; half++) {
    for (int k = 0; k < 16; k++) {
      float row[16];
      for (int n = 0; n < 16; n++) row[n] = emulated_half(right.words[k][n], half);
      for (int m = 0; m < 16; m++) {
        const float factor = emulated_half(left.words[m][k], half);
        for (int n = 0; n < 16; n++) c.words[m][n] += factor * row[n];
      }
    }
  }
}

}  // namespace sg

#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#define _tile_zero emulated_zero
#define _tile_loadd emulated_load
#define _tile_stored emulated_store
#define _tile_dpbf16ps emulated_multiply
