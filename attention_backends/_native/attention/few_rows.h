// Scores and weighted values for a few query rows, straight from a cache in bf16: what decoding is made of.
//
// With few rows, packing a chunk costs more than its products. Here keys are transposed and widened in registers, and
// values are widened as they are read. Every sum is taken in the order of `product`, so that both ways give the same
// bits.
//
// Out of memory this is bound by how many reads are under way: rows are prefetched `kAhead` keys before their use, a
// line at a time in the order of their addresses, between the products. Hence `keys` must go on for kAhead rows after
// the last one: after a chunk's keys its values, then the keys of the next chunk.
#pragma once

#include "pack.h"

#if defined(__AVX512F__)
namespace sg {

constexpr int kFewRows = 8;
constexpr int kFewValueRows = 4;

// The lines of rows to come, one at each step.
struct Lines {
  const void* const* row;
  int line, lines_of_row;

  void prefetch_next() {
    _mm_prefetch((const char*)*row + kLineBytes * line, _MM_HINT_T0);
    if (++line == lines_of_row) line = 0, row++;
  }
};

// scores[row * stride + key] for the keys of `span`, whose ends are multiples of 16; `rows`: [Rows, head_dim].
template <int Rows>
__attribute__((noinline)) void few_scores(const float* rows, int head_dim, const void* const* keys, Span span,
                                          float* scores, int stride) {
  Lines ahead = {keys + span.begin + kAhead, 0, head_dim * 2 / kLineBytes};
  for (int key = span.begin; key < span.end; key += 16) {
    Vec sums[Rows] = {};
    for (int d = 0; d < head_dim; d += 32) {
      Vec pairs[16];
      for (int i = 0; i < 16; i++) pairs[i] = (Vec)read_words(keys, key + i, d);
      transpose(pairs);
      for (int j = 0; j < 16; j++) {
        ahead.prefetch_next();
        const Vec first = first_of_pairs(pairs[j]), second = second_of_pairs(pairs[j]);
        const float* row = rows + d + 2 * j;
        for (int i = 0; i < Rows; i++) sums[i] += first * row[i * head_dim];
        for (int i = 0; i < Rows; i++) sums[i] += second * row[i * head_dim + 1];
      }
    }
    for (int i = 0; i < Rows; i++) store(scores + i * stride + key, sums[i]);
  }
}

// out[row * head_dim + d] for the Blocks * 32 columns from d on; `weights`: [Rows, stride].
template <int Rows, int Blocks>
__attribute__((noinline)) void few_values(const float* weights, int stride, const void* const* keys, Span span, int d,
                                          int head_dim, float* out) {
  Vec even[Rows][Blocks] = {}, odd[Rows][Blocks] = {};
  for (int key = span.begin; key < span.end; key++) {
    for (int b = 0; b < Blocks; b++) {
      const Vec words = (Vec)read_words(keys, key, d + 32 * b);
      _mm_prefetch((const char*)(row_of<uint16_t>(keys, key + kAhead) + d + 32 * b), _MM_HINT_T0);
      const Vec first = first_of_pairs(words), second = second_of_pairs(words);
      for (int i = 0; i < Rows; i++) {
        const float weight = weights[i * stride + key];
        even[i][b] += first * weight;
        odd[i][b] += second * weight;
      }
    }
  }
  const __m512i front = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i back = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  for (int i = 0; i < Rows; i++) {
    for (int b = 0; b < Blocks; b++) {
      float* columns = out + (int64_t)i * head_dim + d + 32 * b;
      store(columns, (Vec)_mm512_permutex2var_ps((__m512)even[i][b], front, (__m512)odd[i][b]));
      store(columns + 16, (Vec)_mm512_permutex2var_ps((__m512)even[i][b], back, (__m512)odd[i][b]));
    }
  }
}

template <int Rows>
void few_values_of(const float* weights, int stride, const void* const* keys, Span span, int head_dim, float* out) {
  int d = 0;
  for (; d + 64 <= head_dim; d += 64) few_values<Rows, 2>(weights, stride, keys, span, d, head_dim, out);
  if (d < head_dim) few_values<Rows, 1>(weights, stride, keys, span, d, head_dim, out);
}

inline void scores_of_few(int num_rows, const float* rows, int head_dim, const void* const* keys, Span span,
                          float* scores, int stride) {
  switch (num_rows) {
    case 1: return few_scores<1>(rows, head_dim, keys, span, scores, stride);
    case 2: return few_scores<2>(rows, head_dim, keys, span, scores, stride);
    case 3: return few_scores<3>(rows, head_dim, keys, span, scores, stride);
    case 4: return few_scores<4>(rows, head_dim, keys, span, scores, stride);
    case 5: return few_scores<5>(rows, head_dim, keys, span, scores, stride);
    case 6: return few_scores<6>(rows, head_dim, keys, span, scores, stride);
    case 7: return few_scores<7>(rows, head_dim, keys, span, scores, stride);
    case 8: return few_scores<8>(rows, head_dim, keys, span, scores, stride);
  }
}

inline void values_of_few(int num_rows, const float* weights, int stride, const void* const* keys, Span span,
                          int head_dim, float* out) {
  for (int row = 0; row < num_rows; row += kFewValueRows) {
    const float* w = weights + (int64_t)row * stride;
    float* o = out + (int64_t)row * head_dim;
    switch (num_rows - row) {
      case 1: few_values_of<1>(w, stride, keys, span, head_dim, o); break;
      case 2: few_values_of<2>(w, stride, keys, span, head_dim, o); break;
      case 3: few_values_of<3>(w, stride, keys, span, head_dim, o); break;
      default: few_values_of<4>(w, stride, keys, span, head_dim, o); break;
    }
  }
}

}  // namespace sg
#endif
