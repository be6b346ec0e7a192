// Gathering a chunk of keys and values from the paged cache into the packed order of `product.h`.
#pragma once

#include "elements.h"
#include "product.h"

namespace sg {

constexpr int kPanel = kBlockVecs * W;  // keys of a panel

// Rows of W words become columns: out[j * stride + i] = rows[i][j], for the first `num` of j.
inline void store_transposed(Vec* rows, float* out, int stride, int num) {
#if defined(__AVX512F__)
  __m512i a[16], b[16];
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
    const __m512i low01 = _mm512_shuffle_i32x4(a[j], a[4 + j], 0x44), high01 = _mm512_shuffle_i32x4(a[j], a[4 + j], 0xee);
    const __m512i low23 = _mm512_shuffle_i32x4(a[8 + j], a[12 + j], 0x44), high23 = _mm512_shuffle_i32x4(a[8 + j], a[12 + j], 0xee);
    b[j] = _mm512_shuffle_i32x4(low01, low23, 0x88);
    b[4 + j] = _mm512_shuffle_i32x4(low01, low23, 0xdd);
    b[8 + j] = _mm512_shuffle_i32x4(high01, high23, 0x88);
    b[12 + j] = _mm512_shuffle_i32x4(high01, high23, 0xdd);
  }
  for (int j = 0; j < num; j++) _mm512_storeu_si512(out + (int64_t)j * stride, b[j]);
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
  for (int j = 0; j < num; j++) {
    const __m256 column = j < 4 ? _mm256_permute2f128_ps(a[j], a[4 + j], 0x20)
                                : _mm256_permute2f128_ps(a[j - 4], a[j], 0x31);
    _mm256_storeu_ps(out + (int64_t)j * stride, column);
  }
#else
  for (int j = 0; j < num; j++) {
    for (int i = 0; i < W; i++) out[(int64_t)j * stride + i] = rows[i][j];
  }
#endif
}

// `offsets[i]` is where key i is, in elements; negative where there is none: zeros are packed for it.
// K: panels [depth, kPanel] of 32-bit words, for keys [0, num_keys), num_keys a multiple of W.
template <class Type>
inline void pack_keys(const typename Type::Raw* k, const int64_t* offsets, int num_keys, int head_dim, float* out) {
  for (int key = 0; key < num_keys; key += W) {
    float* column = out + (int64_t)(key / kPanel) * kPanel * head_dim + key % kPanel;
    for (int d = 0; d < head_dim; d += W) {
      Vec rows[W];
      for (int i = 0; i < W; i++) {
        const int64_t offset = offsets[key + i];
        rows[i] = offset < 0 ? Vec{} : Type::read(k + offset + d);
      }
      store_transposed(rows, column + (int64_t)d * kPanel, kPanel, W);
    }
  }
}

// V: [num_keys, head_dim] floats.
template <class Type>
inline void pack_values(const typename Type::Raw* v, const int64_t* offsets, int num_keys, int head_dim, float* out) {
  for (int key = 0; key < num_keys; key++) {
    const int64_t offset = offsets[key];
    for (int d = 0; d < head_dim; d += W) {
      store(out + (int64_t)key * head_dim + d, offset < 0 ? Vec{} : Type::read(v + offset + d));
    }
  }
}

#if defined(__AVX512BF16__)
// K as pairs along the head dimension; `depth` >= head_dim / 2 is a multiple of 16, zeros after the keys' end.
inline void pack_key_pairs(const uint16_t* k, const int64_t* offsets, int num_keys, int head_dim, int depth, float* out) {
  for (int key = 0; key < num_keys; key += 16) {
    float* column = out + (int64_t)(key / kPanel) * kPanel * depth + key % kPanel;
    for (int word = 0; word < depth; word += 16) {
      const int words = head_dim / 2 - word;
      const __mmask16 inside = words >= 16 ? 0xffff : (__mmask16)((1u << words) - 1);
      Vec rows[16];
      for (int i = 0; i < 16; i++) {
        const int64_t offset = offsets[key + i];
        rows[i] = offset < 0 ? Vec{} : (Vec)_mm512_maskz_loadu_epi32(inside, k + offset + 2 * word);
      }
      store_transposed(rows, column + (int64_t)word * kPanel, kPanel, 16);
    }
  }
}

// V as pairs of keys: [num_keys / 2, head_dim] words.
inline void pack_value_pairs(const uint16_t* v, const int64_t* offsets, int num_keys, int head_dim, float* out) {
  for (int key = 0; key < num_keys; key += 2) {
    const int64_t first = offsets[key], second = offsets[key + 1];
    for (int d = 0; d < head_dim; d += 16) {
      const __m512i low = first < 0 ? __m512i{} : _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)(v + first + d)));
      const __m512i high = second < 0 ? __m512i{} : _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)(v + second + d)));
      const __m512i pairs = _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
      _mm512_storeu_si512(out + (int64_t)(key / 2) * head_dim + d, pairs);
    }
  }
}
#endif

}  // namespace sg
