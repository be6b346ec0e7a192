// Linear layers over packed bfloat16 weights: weights widened to float in registers, float sums.
//
// On CPUs whose bfloat16 dot product takes as long as four float multiply-adds this is the faster
// way, and it needs no instructions of its own. A row's sums are taken in one order whatever other
// rows there are. The tile path (AMX) is in tiles.h.
#include "linear.h"

#include "tiles.h"

namespace {

#if defined(__AVX512F__)
constexpr int kMostRows = 12;  // 2 vectors of sums a row, and 4 of weights, in 32 registers
#else
constexpr int kMostRows = 5;
#endif

template <int M, bool kPrefetch>
inline void multiply(const float* x, int64_t stride, const uint32_t* line, int64_t n_in,
                     vf (&sums)[M][2]) {
#pragma GCC unroll 16
  for (int m = 0; m < M; m++) sums[m][0] = sums[m][1] = vf{};
  for (int64_t k = 0; k < n_in; k += 2, line += kPanel, x += 2 * stride) {
    if (kPrefetch) {
      __builtin_prefetch(reinterpret_cast<const char*>(line) + kAhead);
      __builtin_prefetch(reinterpret_cast<const char*>(line) + kAhead + 64);
    }
    const vu low = load_bits<vu>(line), high = load_bits<vu>(line + 16);
    const vf low_even = (vf)(low << 16), high_even = (vf)(high << 16);
#pragma GCC unroll 16
    for (int m = 0; m < M; m++) {
      const vf even = splat(x[m]);
      sums[m][0] += low_even * even;
      sums[m][1] += high_even * even;
    }
    const vf low_odd = (vf)(low & 0xffff0000u), high_odd = (vf)(high & 0xffff0000u);
    const float* next = x + stride;
#pragma GCC unroll 16
    for (int m = 0; m < M; m++) {
      const vf odd = splat(next[m]);
      sums[m][0] += low_odd * odd;
      sums[m][1] += high_odd * odd;
    }
  }
}

template <int M>
struct FloatPass {
  static void run(const LinearArgs* a, const float* prepared, int64_t row, int64_t panel,
                  bool is_first) {
    const int64_t n_in = a->n_in, stride = Groups(a->rows, kMostRows).stride;
    const float* x = prepared + row * n_in;
    const uint32_t* weights = static_cast<const uint32_t*>(a->weights) + panel * (n_in / 2) * kPanel;
    for (int part = 0; part < kParts; part++) {
      vf sums[M][2];
      if (is_first)
        multiply<M, true>(x, stride, weights + part * kLanes, n_in, sums);
      else
        multiply<M, false>(x, stride, weights + part * kLanes, n_in, sums);
#pragma GCC unroll 16
      for (int m = 0; m < M; m++) put_row(a, row + m, panel, part, sums[m][0], sums[m][1]);
    }
  }
};

}  // namespace

extern "C" STEPGRAPH_EXPORT void linear_bfloat16(const void* args, Team* team) {
  const LinearArgs* a = static_cast<const LinearArgs*>(args);
#if STEPGRAPH_HAS_TILES
  if (a->rows >= kFewestTileRows) return linear_by_tiles(a, team);
#endif
  const int64_t row_bytes = a->n_in * sizeof(float);
  const char* rows = prepare(a, kMostRows, row_bytes, team, [&](char* to, int64_t begin, int64_t end) {
    widen(a, reinterpret_cast<float*>(to), kMostRows, begin, end);
  });
  walk<FloatPass, kMostRows>(a, reinterpret_cast<const float*>(rows), row_bytes, team);
}
