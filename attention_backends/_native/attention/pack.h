// Gathering a chunk of keys and values from the paged cache into the packed order of `product.h`, as floats.
#pragma once

#include <type_traits>

#include "elements.h"
#include "product.h"

namespace sg {

// Keys [begin, end) of a chunk.
struct Span {
  int begin, end;
};

constexpr int kPanel = kBlockVecs * W;  // keys of a panel
constexpr int kLineBytes = 64;          // of a cache
constexpr int kAhead = 32;              // keys between the prefetch of a row and its use

#if defined(__AVX512F__)
// In place: rows[j][i] = rows[i][j], words of 32 bits.
inline void transpose(Vec* rows) {
  __m512i a[16];
  for (int i = 0; i < 16; i += 4) {
    const __m512i r0 = (__m512i)rows[i], r1 = (__m512i)rows[i + 1];
    const __m512i r2 = (__m512i)rows[i + 2], r3 = (__m512i)rows[i + 3];
    const __m512i t0 = _mm512_unpacklo_epi32(r0, r1), t1 = _mm512_unpackhi_epi32(r0, r1);
    const __m512i t2 = _mm512_unpacklo_epi32(r2, r3), t3 = _mm512_unpackhi_epi32(r2, r3);
    a[i] = _mm512_unpacklo_epi64(t0, t2);
    a[i + 1] = _mm512_unpackhi_epi64(t0, t2);
    a[i + 2] = _mm512_unpacklo_epi64(t1, t3);
    a[i + 3] = _mm512_unpackhi_epi64(t1, t3);
  }
  for (int j = 0; j < 4; j++) {  // a[4 * q + j]: rows 4q.., columns j, 4 + j, 8 + j, 12 + j by 128-bit lane
    const __m512i low01 = _mm512_shuffle_i32x4(a[j], a[4 + j], 0x44);
    const __m512i high01 = _mm512_shuffle_i32x4(a[j], a[4 + j], 0xee);
    const __m512i low23 = _mm512_shuffle_i32x4(a[8 + j], a[12 + j], 0x44);
    const __m512i high23 = _mm512_shuffle_i32x4(a[8 + j], a[12 + j], 0xee);
    rows[j] = (Vec)_mm512_shuffle_i32x4(low01, low23, 0x88);
    rows[4 + j] = (Vec)_mm512_shuffle_i32x4(low01, low23, 0xdd);
    rows[8 + j] = (Vec)_mm512_shuffle_i32x4(high01, high23, 0x88);
    rows[12 + j] = (Vec)_mm512_shuffle_i32x4(high01, high23, 0xdd);
  }
}
#endif

// Rows of W words become columns: out[j * stride + i] = rows[i][j]. `rows` is used up.
inline void store_transposed(Vec* rows, float* out, int stride) {
#if defined(__AVX512F__)
  transpose(rows);
  for (int j = 0; j < 16; j++) store(out + (int64_t)j * stride, rows[j]);
#elif defined(__AVX2__)
  __m256 a[8];
  for (int i = 0; i < 8; i += 4) {
    const __m256 t0 = _mm256_unpacklo_ps((__m256)rows[i], (__m256)rows[i + 1]);
    const __m256 t1 = _mm256_unpackhi_ps((__m256)rows[i], (__m256)rows[i + 1]);
    const __m256 t2 = _mm256_unpacklo_ps((__m256)rows[i + 2], (__m256)rows[i + 3]);
    const __m256 t3 = _mm256_unpackhi_ps((__m256)rows[i + 2], (__m256)rows[i + 3]);
    a[i] = _mm256_shuffle_ps(t0, t2, 0x44);
    a[i + 1] = _mm256_shuffle_ps(t0, t2, 0xee);
    a[i + 2] = _mm256_shuffle_ps(t1, t3, 0x44);
    a[i + 3] = _mm256_shuffle_ps(t1, t3, 0xee);
  }
  for (int j = 0; j < W; j++) {
    const __m256 column = j < 4 ? _mm256_permute2f128_ps(a[j], a[4 + j], 0x20)
                                : _mm256_permute2f128_ps(a[j - 4], a[j], 0x31);
    _mm256_storeu_ps(out + (int64_t)j * stride, column);
  }
#else
  for (int j = 0; j < W; j++) {
    for (int i = 0; i < W; i++) out[(int64_t)j * stride + i] = rows[i][j];
  }
#endif
}

// `keys[i]` is where key i of the chunk is in the cache, of one K/V head; a row of zeros where there is none.
template <class Raw>
const Raw* row_of(const void* const* keys, int i) { return (const Raw*)keys[i]; }

#if defined(__AVX512F__)
inline __m512i read_words(const void* const* keys, int i, int d) {
  return _mm512_loadu_si512(row_of<uint16_t>(keys, i) + d);
}

// Two bf16 in each word.
inline Vec first_of_pairs(Vec words) { return (Vec)_mm512_slli_epi32((__m512i)words, 16); }
inline Vec second_of_pairs(Vec words) {
  return (Vec)_mm512_and_si512((__m512i)words, _mm512_set1_epi32((int)0xffff0000u));
}

// Columns d .. d + 31 of 16 keys in bf16, moved as pairs: half the shuffles.
inline void pack_pairs_of_keys(const void* const* keys, int key, int d, float* column) {
  Vec rows[16];
  for (int i = 0; i < 16; i++) rows[i] = (Vec)read_words(keys, key + i, d);
  transpose(rows);
  for (int j = 0; j < 16; j++) {
    store(column + (int64_t)(d + 2 * j) * kPanel, first_of_pairs(rows[j]));
    store(column + (int64_t)(d + 2 * j + 1) * kPanel, second_of_pairs(rows[j]));
  }
}
#endif

// K: panels [head_dim, kPanel]; the ends of `span` are multiples of W.
template <class Type>
__attribute__((noinline)) void pack_keys(const void* const* keys, Span span, int head_dim, float* out) {
  for (int key = span.begin; key < span.end; key += W) {
    float* column = out + (int64_t)(key / kPanel) * kPanel * head_dim + key % kPanel;
    int d = 0;
#if defined(__AVX512F__)
    if (std::is_same<Type, Bfloat16>()) {
      for (; d + 32 <= head_dim; d += 32) pack_pairs_of_keys(keys, key, d, column);
    }
#endif
    for (; d < head_dim; d += W) {
      Vec rows[W];
      for (int i = 0; i < W; i++) rows[i] = Type::read(row_of<typename Type::Raw>(keys, key + i) + d);
      store_transposed(rows, column + (int64_t)d * kPanel, kPanel);
    }
  }
}

// V: [keys, head_dim].
template <class Type>
__attribute__((noinline)) void pack_values(const void* const* keys, Span span, int head_dim, float* out) {
  for (int key = span.begin; key < span.end; key++) {
    const typename Type::Raw* row = row_of<typename Type::Raw>(keys, key);
    for (int d = 0; d < head_dim; d += W) store(out + (int64_t)key * head_dim + d, Type::read(row + d));
  }
}

}  // namespace sg
