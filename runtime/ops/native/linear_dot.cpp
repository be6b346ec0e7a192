// Linear layers over packed bfloat16 weights by the dot product of pairs (AVX-512 BF16), float sums.
//
// A panel's line is what the instruction wants: 16 outputs, a pair of inputs each. Twice the work of a
// float multiply-add in one instruction, which some CPUs do at the same rate and others at a quarter of
// it: which path runs is measured (see paths.py). A row's sums are taken in one order whatever other
// rows there are. Subnormal numbers count as zero, as the instruction has it.
#if defined(__AVX512BF16__)
#include <immintrin.h>

#include "linear.h"

namespace {

constexpr int kDotRows = 12;

struct DotRows {
  const uint32_t* pairs;  // groups of rows, see group_stride; for each pair of inputs the rows side by side
};

template <int M, bool kIsAlone>
inline void multiply(const uint32_t* x, int64_t stride, const char* line, int64_t pairs, Turn turn,
                     __m512 (&sums)[M][2]) {
#pragma GCC unroll 16
  for (int m = 0; m < M; m++) sums[m][0] = sums[m][1] = _mm512_setzero_ps();
  for (int64_t k = 0; k < pairs; k++, line += kLine, x += stride) {
    prefetch<kIsAlone>(&turn);
    const __m512bh low = (__m512bh)_mm512_loadu_si512(line);
    const __m512bh high = (__m512bh)_mm512_loadu_si512(line + 64);
#pragma GCC unroll 16
    for (int m = 0; m < M; m++) {
      const __m512bh value = (__m512bh)_mm512_set1_epi32(x[m]);
      sums[m][0] = _mm512_dpbf16_ps(sums[m][0], low, value);
      sums[m][1] = _mm512_dpbf16_ps(sums[m][1], high, value);
    }
  }
}

template <int M>
struct DotPass {
  static void run(const LinearArgs* a, DotRows prepared, int64_t row, int64_t panel, Turn turn) {
    const int64_t pairs = a->n_in / 2, stride = group_stride(a, kDotRows);
    const uint32_t* x = prepared.pairs + row * pairs;
    const char* line = static_cast<const char*>(a->weights) + panel * pairs * kLine;
    __m512 sums[M][2];
    if (turn.count == 1)
      multiply<M, true>(x, stride, line, pairs, turn, sums);
    else
      multiply<M, false>(x, stride, line, pairs, turn, sums);
#pragma GCC unroll 16
    for (int m = 0; m < M; m++) put_row(a, row + m, panel, 0, (vf)sums[m][0], (vf)sums[m][1]);
  }
};

// `count` rows of one group, side by side for each pair of inputs.
inline void pair_group(const Bf16* x, int64_t x_stride, int64_t pairs, int64_t count, int64_t stride,
                       uint32_t* to) {
  for (int64_t k = 0; k < pairs; k += kLanes) {
    vf block[kLanes] = {};
    for (int64_t m = 0; m < count; m++) block[m] = load_bits<vf>(x + m * x_stride + 2 * k);
    if (stride == 1) {
      memcpy(to + k, block, sizeof(vf));
      continue;
    }
    transpose(block);
    // A whole vector reaches into the pairs to come; at the end there are none.
    for (int i = 0; i < kLanes; i++) {
      uint32_t* at = to + (k + i) * stride;
      const int64_t room = (pairs - k - i) * stride;
      memcpy(at, block + i, (room < kLanes ? room : kLanes) * sizeof(float));
    }
  }
}

}  // namespace

extern "C" STEPGRAPH_EXPORT void linear_bfloat16_dot(const void* args, Team* team) {
  const LinearArgs* a = static_cast<const LinearArgs*>(args);
  const int64_t pairs = a->n_in / 2, row_bytes = pairs * sizeof(uint32_t);
  const int64_t stride = group_stride(a, kDotRows);
  auto fill = [&](char* to, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row += stride) {
      const int64_t count = end - row < stride ? end - row : stride;
      pair_group(a->x + row * a->x_stride, a->x_stride, pairs, count, stride,
                 reinterpret_cast<uint32_t*>(to) + row * pairs);
    }
  };
  const char* rows = prepare(a, static_cast<char*>(a->scratch), kDotRows, row_bytes, team, fill);
  walk<DotPass, kDotRows>(a, DotRows{reinterpret_cast<const uint32_t*>(rows)}, row_bytes,
                          a->n_in * kPanel * sizeof(Bf16), team);
}
#endif
