// The tile path (AMX) of the bfloat16 linear kernel: 32 rows by one panel at a time.
//
// A panel's half line is a tile row of 16 outputs by one input pair, so weights load as they lie.
#include "linear.h"

#if defined(STEPGRAPH_EMULATED_TILES)
#include <immintrin.h>  // before its tile instructions are replaced

#include "emulated_tiles.h"
#define STEPGRAPH_HAS_TILES 1
#elif defined(STEPGRAPH_ISA_AMX)
#include <immintrin.h>
#define STEPGRAPH_HAS_TILES 1
#else
#define STEPGRAPH_HAS_TILES 0
#endif

#if STEPGRAPH_HAS_TILES
namespace {

constexpr int64_t kTileRows = 16;
constexpr int64_t kTileInputs = 32;

struct alignas(64) TileConfig {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t column_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// The rows that do not fill a tile, padded with zeros, [16, n_in].
inline const Bf16* padded_tail(const LinearArgs* a, Bf16* to, int64_t first) {
  memset(to, 0, kTileRows * a->n_in * sizeof(Bf16));
  for (int64_t row = first; row < a->rows; row++)
    memcpy(to + (row - first) * a->n_in, a->x + row * a->x_stride, a->n_in * sizeof(Bf16));
  return to;
}

inline void prefetch_tile(const char* line) {
  for (int i = 0; i < kTileRows; i++) {
    __builtin_prefetch(line + kAhead + i * 2 * 64);
    __builtin_prefetch(line + kAhead + i * 2 * 64 + 64);
  }
}

struct RowTile {
  const Bf16* x;
  int64_t stride_bytes;
};

// Sums of two (or one) row tiles by a panel into `sums` [32][32].
inline void multiply_tiles(const RowTile* rows, bool has_two, const char* weights, int64_t n_in,
                           bool is_first, float* sums) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t k = 0; k < n_in / kTileInputs; k++) {
    const char* block = weights + k * kTileRows * kPanel * 4;
    if (is_first) prefetch_tile(block);
    _tile_loadd(4, rows[0].x + k * kTileInputs, rows[0].stride_bytes);
    _tile_loadd(6, block, kPanel * 4);
    _tile_loadd(7, block + 64, kPanel * 4);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (has_two) {
      _tile_loadd(5, rows[1].x + k * kTileInputs, rows[1].stride_bytes);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, sums, kPanel * 4);
  _tile_stored(1, sums + 16, kPanel * 4);
  if (has_two) {
    _tile_stored(2, sums + kTileRows * kPanel, kPanel * 4);
    _tile_stored(3, sums + kTileRows * kPanel + 16, kPanel * 4);
  }
}

}  // namespace

extern "C" STEPGRAPH_EXPORT void linear_bfloat16_tiles(const void* args, Team* team) {
  const LinearArgs* a = static_cast<const LinearArgs*>(args);
  const TileConfig config;
  _tile_loadconfig(&config);
  const int64_t whole = a->rows / kTileRows * kTileRows;
  Bf16* scratch = static_cast<Bf16*>(a->scratch) + team->thread * kTileRows * a->n_in;
  const Bf16* tail = whole < a->rows ? padded_tail(a, scratch, whole) : nullptr;
  auto tile_at = [&](int64_t row) {
    return row < whole ? RowTile{a->x + row * a->x_stride, a->x_stride * 2}
                       : RowTile{tail, a->n_in * 2};
  };
  int64_t begin, end;
  team_range(team, panels_of(a), 1, &begin, &end);
  const int64_t chunk = kChunkBytes / (a->n_in * 2) / 32 * 32 + 32;
  for (int64_t first = 0; first < a->rows; first += chunk) {
    const int64_t last = first + chunk < a->rows ? first + chunk : a->rows;
    for (int64_t panel = begin; panel < end; panel++) {
      const char* weights = static_cast<const char*>(a->weights) + panel * a->n_in * kPanel * 2;
      for (int64_t row = first; row < last; row += 2 * kTileRows) {
        alignas(64) float sums[2 * kTileRows * kPanel];
        const bool has_two = last - row > kTileRows;
        const RowTile tiles[2] = {tile_at(row), tile_at(has_two ? row + kTileRows : row)};
        multiply_tiles(tiles, has_two, weights, a->n_in, row == first, sums);
        const int64_t count = last - row < 2 * kTileRows ? last - row : 2 * kTileRows;
        for (int64_t m = 0; m < count; m++)
          for (int part = 0; part < kParts; part++) {
            const float* sum = sums + m * kPanel + part * kLanes;
            put_row(a, row + m, panel, part, load(sum), load(sum + 16));
          }
      }
    }
  }
  _tile_release();
}
#endif
