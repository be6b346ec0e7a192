// Scores and weighted values for a few query rows, straight from the cache: what decoding is made of.
//
// With few rows, packing a chunk costs more than its products. Here keys are transposed in registers and values are
// paired as they are read. Every sum is taken in the order of `product`, so that both ways give the same bits.
//
// Out of memory this is bound by how many reads are under way: rows are prefetched `kAhead` keys before their use, a
// line at a time in the order of their addresses, between the products. Hence `keys` must go on for kAhead rows after
// the last one: after a chunk's keys its values, then the keys of the next chunk.
#pragma once

#include "pack.h"

#if defined(__AVX512BF16__)
namespace sg {

constexpr int kFewRows = 8;
constexpr int kFewValueRows = 4;

constexpr int kLineWords = 16;

// The lines of rows to come, one at each step.
struct Lines {
  const void* const* row;
  int line, lines_of_row;

  void prefetch_next() {
    _mm_prefetch((const char*)*row + 64 * line, _MM_HINT_T0);
    if (++line == lines_of_row) line = 0, row++;
  }
};

inline bool few_rows_serve(int rows, int head_dim) { return rows <= kFewRows && head_dim % 32 == 0; }

inline __m512i read_words(const void* const* keys, int i, int d) {
  return _mm512_loadu_si512(row_of<uint16_t>(keys, i) + d);
}

// scores[row * kChunk + key] for keys [0, num_keys), a multiple of 16; `rows`: [Rows, depth] pairs.
template <int Rows>
__attribute__((noinline)) void few_scores(const float* rows, int depth, const void* const* keys, int num_keys,
                                          int stride, float* scores) {
  Lines ahead = {keys + kAhead, 0, depth / kLineWords};
  for (int key = 0; key < num_keys; key += 16) {
    Vec sums[Rows] = {};
    for (int word = 0; word < depth; word += 16) {
      Vec columns[16];
      for (int i = 0; i < 16; i++) columns[i] = (Vec)read_words(keys, key + i, 2 * word);
      transpose(columns);
      for (int j = 0; j < 16; j++) {
        ahead.prefetch_next();
        for (int i = 0; i < Rows; i++) sums[i] = Pairs::multiply_add(sums[i], columns[j], rows[i * depth + word + j]);
      }
    }
    for (int i = 0; i < Rows; i++) store(scores + i * stride + key, sums[i]);
  }
}

// out[row * head_dim + d] for the Blocks * 32 columns from d on; `weights`: [Rows, stride] pairs of keys.
template <int Rows, int Blocks>
__attribute__((noinline)) void few_values(const float* weights, int stride, const void* const* keys, int num_keys,
                                          int d, int head_dim, float* out) {
  Vec low[Rows][Blocks] = {}, high[Rows][Blocks] = {};
  for (int key = 0; key < num_keys; key += 2) {
    for (int b = 0; b < Blocks; b++) {
      const __m512i first = read_words(keys, key, d + 32 * b), second = read_words(keys, key + 1, d + 32 * b);
      for (int line = 2 * b; line < 2 * b + 2; line++) {
        const uint16_t* row = row_of<uint16_t>(keys, key + kAhead + line / Blocks);
        _mm_prefetch((const char*)(row + d + line % Blocks * 32), _MM_HINT_T0);
      }
      const Vec pairs_low = (Vec)_mm512_unpacklo_epi16(first, second);
      const Vec pairs_high = (Vec)_mm512_unpackhi_epi16(first, second);
      for (int i = 0; i < Rows; i++) {
        const float weight = weights[i * stride + key / 2];
        low[i][b] = Pairs::multiply_add(low[i][b], pairs_low, weight);
        high[i][b] = Pairs::multiply_add(high[i][b], pairs_high, weight);
      }
    }
  }
  // Unpacking leaves columns 0-3, 8-11, 16-19, 24-27 in the low half, the others in the high one.
  const __m512i front = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i back = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
  for (int i = 0; i < Rows; i++) {
    for (int b = 0; b < Blocks; b++) {
      const __m512 l = (__m512)low[i][b], h = (__m512)high[i][b];
      store(out + (int64_t)i * head_dim + d + 32 * b, (Vec)_mm512_permutex2var_ps(l, front, h));
      store(out + (int64_t)i * head_dim + d + 32 * b + 16, (Vec)_mm512_permutex2var_ps(l, back, h));
    }
  }
}

template <int Rows>
void few_values_of(const float* weights, int stride, const void* const* keys, int num_keys, int head_dim, float* out) {
  int d = 0;
  for (; d + 64 <= head_dim; d += 64) few_values<Rows, 2>(weights, stride, keys, num_keys, d, head_dim, out);
  if (d < head_dim) few_values<Rows, 1>(weights, stride, keys, num_keys, d, head_dim, out);
}

inline void scores_of_few(int num_rows, const float* rows, int depth, const void* const* keys, int num_keys,
                          int stride, float* scores) {
  switch (num_rows) {
    case 1: return few_scores<1>(rows, depth, keys, num_keys, stride, scores);
    case 2: return few_scores<2>(rows, depth, keys, num_keys, stride, scores);
    case 3: return few_scores<3>(rows, depth, keys, num_keys, stride, scores);
    case 4: return few_scores<4>(rows, depth, keys, num_keys, stride, scores);
    case 5: return few_scores<5>(rows, depth, keys, num_keys, stride, scores);
    case 6: return few_scores<6>(rows, depth, keys, num_keys, stride, scores);
    case 7: return few_scores<7>(rows, depth, keys, num_keys, stride, scores);
    case 8: return few_scores<8>(rows, depth, keys, num_keys, stride, scores);
  }
}

inline void values_of_few(int num_rows, const float* weights, int stride, const void* const* keys, int num_keys,
                          int head_dim, float* out) {
  for (int row = 0; row < num_rows; row += kFewValueRows) {
    const float* w = weights + (int64_t)row * stride;
    float* o = out + (int64_t)row * head_dim;
    switch (num_rows - row) {
      case 1: few_values_of<1>(w, stride, keys, num_keys, head_dim, o); break;
      case 2: few_values_of<2>(w, stride, keys, num_keys, head_dim, o); break;
      case 3: few_values_of<3>(w, stride, keys, num_keys, head_dim, o); break;
      default: few_values_of<4>(w, stride, keys, num_keys, head_dim, o); break;
    }
  }
}

}  // namespace sg
#endif
