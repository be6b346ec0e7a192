// Small matrix products C [M, N] = A [M, K] x B [K, N] in floats, out of L1 and L2, where B is packed.
//
// B lies in panels of `width` columns, each [K, width].
#pragma once

#include "vec.h"

namespace sg {

struct Packed {
  const float* data;
  int width;
  int64_t panel;  // elements from one panel to the next

  const float* column(int n) const { return data + n / width * panel + n % width; }
  // Without the first n columns, whole panels of them.
  Packed from(int n) const { return {data + n / width * panel, width, panel}; }
};

template <int Rows, int Vecs>
inline void product_block(const float* a, int lda, const float* b, int ldb, float* c, int ldc, int K) {
  Vec sums[Rows][Vecs];  // in registers, as all loops over them are unrolled
#pragma GCC unroll 6
  for (int i = 0; i < Rows; i++) {
#pragma GCC unroll 4
    for (int j = 0; j < Vecs; j++) sums[i][j] = Vec{};
  }
  for (int k = 0; k < K; k++) {
    Vec columns[Vecs];
#pragma GCC unroll 4
    for (int j = 0; j < Vecs; j++) columns[j] = load(b + (int64_t)k * ldb + j * W);
#pragma GCC unroll 6
    for (int i = 0; i < Rows; i++) {
#pragma GCC unroll 4
      for (int j = 0; j < Vecs; j++) sums[i][j] += columns[j] * a[i * lda + k];
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < Rows; i++) {
#pragma GCC unroll 4
    for (int j = 0; j < Vecs; j++) store(c + (int64_t)i * ldc + j * W, sums[i][j]);
  }
}

template <int Rows>
inline void product_rows(int vecs, const float* a, int lda, const float* b, int ldb, float* c, int ldc, int K) {
  switch (vecs) {
    case 1: return product_block<Rows, 1>(a, lda, b, ldb, c, ldc, K);
    case 2: return product_block<Rows, 2>(a, lda, b, ldb, c, ldc, K);
#if defined(__AVX512F__)
    case 3: return product_block<Rows, 3>(a, lda, b, ldb, c, ldc, K);
    case 4: return product_block<Rows, 4>(a, lda, b, ldb, c, ldc, K);
#endif
  }
}

// N: a multiple of W. Each sum runs over K in order, whatever M and N are.
static __attribute__((noinline)) void product(const float* a, int lda, Packed b, float* c, int ldc, int M, int N, int K) {
  const int blocks = (M + kBlockRows - 1) / kBlockRows, rows = (M + blocks - 1) / blocks;
  for (int n = 0; n < N; n += kBlockVecs * W) {
    const int vecs = N - n < kBlockVecs * W ? (N - n) / W : kBlockVecs;
    for (int m = 0; m < M; m += rows) {
      const float* am = a + (int64_t)m * lda;
      float* cm = c + (int64_t)m * ldc + n;
      const float* bn = b.column(n);
      switch (M - m < rows ? M - m : rows) {
        case 1: product_rows<1>(vecs, am, lda, bn, b.width, cm, ldc, K); break;
        case 2: product_rows<2>(vecs, am, lda, bn, b.width, cm, ldc, K); break;
        case 3: product_rows<3>(vecs, am, lda, bn, b.width, cm, ldc, K); break;
        case 4: product_rows<4>(vecs, am, lda, bn, b.width, cm, ldc, K); break;
        case 5: product_rows<5>(vecs, am, lda, bn, b.width, cm, ldc, K); break;
        case 6: product_rows<6>(vecs, am, lda, bn, b.width, cm, ldc, K); break;
      }
    }
  }
}

}  // namespace sg
