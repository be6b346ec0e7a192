// The AMX tile instructions that the kernels use, in plain C++, as the manual defines them: eight
// tiles of 16 rows by 64 bytes a thread; a tile that was not configured must not be touched.
#ifndef STEPGRAPH_TESTS_EMULATED_TILES_H
#define STEPGRAPH_TESTS_EMULATED_TILES_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

namespace emulated {

struct Tiles {
  uint8_t rows[8] = {};
  uint16_t column_bytes[8] = {};
  alignas(64) uint8_t data[8][16][64] = {};
};
inline thread_local Tiles tiles;

inline void check(int tile) {
  if (!tiles.rows[tile] || !tiles.column_bytes[tile]) abort();
}

inline void load_config(const void* config) {
  const uint8_t* bytes = static_cast<const uint8_t*>(config);
  if (bytes[0] != 1) abort();
  tiles = Tiles();
  for (int t = 0; t < 8; t++) {
    memcpy(&tiles.column_bytes[t], bytes + 16 + 2 * t, 2);
    tiles.rows[t] = bytes[48 + t];
    if (tiles.rows[t] > 16 || tiles.column_bytes[t] > 64) abort();
  }
}

inline void zero(int tile) {
  check(tile);
  memset(tiles.data[tile], 0, sizeof tiles.data[tile]);
}

inline void load(int tile, const void* base, int64_t stride) {
  zero(tile);
  for (int r = 0; r < tiles.rows[tile]; r++)
    memcpy(tiles.data[tile][r], static_cast<const char*>(base) + r * stride,
           tiles.column_bytes[tile]);
}

inline void store(int tile, void* base, int64_t stride) {
  check(tile);
  for (int r = 0; r < tiles.rows[tile]; r++)
    memcpy(static_cast<char*>(base) + r * stride, tiles.data[tile][r], tiles.column_bytes[tile]);
}

inline float widened(const uint8_t* at) {
  uint16_t bits;
  memcpy(&bits, at, 2);
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  memcpy(&value, &wide, 4);
  return value;
}

// C[m][n] += A[m][2k] * B[k][2n] + A[m][2k + 1] * B[k][2n + 1]
inline void dot_bf16(int c, int a, int b) {
  check(c), check(a), check(b);
  if (tiles.rows[c] != tiles.rows[a] || tiles.column_bytes[c] != tiles.column_bytes[b] ||
      tiles.column_bytes[a] != 4 * tiles.rows[b])
    abort();
  for (int m = 0; m < tiles.rows[c]; m++)
    for (int k = 0; k < tiles.column_bytes[a] / 4; k++)
      for (int n = 0; n < tiles.column_bytes[c] / 4; n++) {
        float sum;
        memcpy(&sum, &tiles.data[c][m][4 * n], 4);
        for (int i = 0; i < 2; i++)
          sum += widened(&tiles.data[a][m][4 * k + 2 * i]) * widened(&tiles.data[b][k][4 * n + 2 * i]);
        memcpy(&tiles.data[c][m][4 * n], &sum, 4);
      }
}

inline void release() { tiles = Tiles(); }

}  // namespace emulated

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#define _tile_loadconfig(config) emulated::load_config(config)
#define _tile_release() emulated::release()
#define _tile_zero(tile) emulated::zero(tile)
#define _tile_loadd(tile, base, stride) emulated::load(tile, base, stride)
#define _tile_stored(tile, base, stride) emulated::store(tile, base, stride)
#define _tile_dpbf16ps(c, a, b) emulated::dot_bf16(c, a, b)

#endif
