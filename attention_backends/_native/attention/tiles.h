// Products in AMX tiles: 16 x 16 sums of bf16 pairs, two by two. An element along K is a pair, in 32 bits.
#pragma once

#include "pack.h"

#if defined(STEPGRAPH_EMULATED_TILES)
#include "emulated_tiles.h"
#define STEPGRAPH_HAS_TILES 1
#elif defined(__AMX_BF16__)
#define STEPGRAPH_HAS_TILES 1

namespace sg {

inline void open_tiles() {
  struct __attribute__((packed)) {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
  } config = {};
  config.palette = 1;
  for (int tile = 0; tile < 8; tile++) config.row_bytes[tile] = 64, config.rows[tile] = 16;
  _tile_loadconfig(&config);
}

inline void close_tiles() { _tile_release(); }

}  // namespace sg
#endif

#if defined(STEPGRAPH_HAS_TILES)
namespace sg {

constexpr int kTile = 16;  // rows, columns, and words along K

// K as pairs along the head dimension; `depth` >= head_dim / 2 is a multiple of 16, zeros after the keys' end.
inline void pack_key_pairs(const void* const* keys, Span span, int head_dim, int depth, float* out) {
  for (int key = span.begin; key < span.end; key += 16) {
    float* column = out + (int64_t)(key / kPanel) * kPanel * depth + key % kPanel;
    for (int word = 0; word < depth; word += 16) {
      const int words = head_dim / 2 - word;
      const __mmask16 inside = words >= 16 ? 0xffff : (__mmask16)((1u << words) - 1);
      Vec rows[16];
      for (int i = 0; i < 16; i++) {
        rows[i] = (Vec)_mm512_maskz_loadu_epi32(inside, row_of<uint16_t>(keys, key + i) + 2 * word);
      }
      store_transposed(rows, column + (int64_t)word * kPanel, kPanel);
    }
  }
}

// V as pairs of keys: [num_keys / 2, head_dim] words.
inline void pack_value_pairs(const void* const* keys, Span span, int head_dim, float* out) {
  for (int key = span.begin; key < span.end; key += 2) {
    const uint16_t *first = row_of<uint16_t>(keys, key), *second = row_of<uint16_t>(keys, key + 1);
    for (int d = 0; d < head_dim; d += 16) {
      const __m512i low = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)(first + d)));
      const __m512i high = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)(second + d)));
      store(out + (int64_t)(key / 2) * head_dim + d, (Vec)_mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
    }
  }
}

// One or two tiles of rows by one or two of columns. Sums in tiles 0-3, A in 4 and 5, B in 6 and 7; the numbers are
// part of the instructions, hence literal.
template <bool TwoRows, bool TwoColumns>
inline void tile_block(const float* a, int lda, const float* b, int ldb, float* c, int ldc, int K) {
  _tile_zero(0);
  if (TwoColumns) _tile_zero(1);
  if (TwoRows) _tile_zero(2);
  if (TwoRows && TwoColumns) _tile_zero(3);
  for (int k = 0; k < K; k += kTile) {
    const float* bk = b + (int64_t)k * ldb;
    _tile_loadd(4, a + k, lda * 4);
    _tile_loadd(6, bk, ldb * 4);
    _tile_dpbf16ps(0, 4, 6);
    if (TwoColumns) {
      _tile_loadd(7, bk + kTile, ldb * 4);
      _tile_dpbf16ps(1, 4, 7);
    }
    if (TwoRows) {
      _tile_loadd(5, a + (int64_t)kTile * lda + k, lda * 4);
      _tile_dpbf16ps(2, 5, 6);
      if (TwoColumns) _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, c, ldc * 4);
  if (TwoColumns) _tile_stored(1, c + kTile, ldc * 4);
  if (TwoRows) _tile_stored(2, c + (int64_t)kTile * ldc, ldc * 4);
  if (TwoRows && TwoColumns) _tile_stored(3, c + (int64_t)kTile * ldc + kTile, ldc * 4);
}

// As `product`. A and C have room for M rounded up to 16; K and N are multiples of 16.
inline void tile_product(const float* a, int lda, Packed b, float* c, int ldc, int M, int N, int K) {
  asm volatile("" ::: "memory");  // GCC does not know that a tile load reads memory
  for (int n = 0; n < N; n += 2 * kTile) {
    const bool two_columns = N - n > kTile;
    const float* bn = b.column(n);
    for (int m = 0; m < M; m += 2 * kTile) {
      const float* am = a + (int64_t)m * lda;
      float* cm = c + (int64_t)m * ldc + n;
      const bool two_rows = M - m > kTile;
      if (two_rows && two_columns) tile_block<true, true>(am, lda, bn, b.width, cm, ldc, K);
      if (two_rows && !two_columns) tile_block<true, false>(am, lda, bn, b.width, cm, ldc, K);
      if (!two_rows && two_columns) tile_block<false, true>(am, lda, bn, b.width, cm, ldc, K);
      if (!two_rows && !two_columns) tile_block<false, false>(am, lda, bn, b.width, cm, ldc, K);
    }
  }
}

}  // namespace sg
#endif
