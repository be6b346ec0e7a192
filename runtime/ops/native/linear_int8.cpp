// Linear layers over packed 8-bit weights with a scale for each output.
//
// With VNNI a row of x becomes 16-bit fixed point (its largest element is 32767), cut into two bytes,
// so that two byte dot products give the exact integer sum: the error is that of rounding x to 1/32767
// of the row's largest, and no rounding inside. Elsewhere weights are widened to float.
#include "linear.h"

#if defined(__AVX512VNNI__)
#include "fixed_point.h"
#endif

namespace {

#if defined(__AVX512VNNI__)

// Of 4 inputs, the high bytes of a group's rows (128 more than signed) and the low ones, in turns.
template <int M>
struct Int8FixedPass {
  static void run(const LinearArgs* a, const FixedRows& x, int64_t row, int64_t panel, Turn turn) {
    __m512i sums[M][2][2];  // [row][half of the panel][byte of x]
    if (turn.count == 1)
      multiply<true>(a, x, row, panel, turn, sums);
    else
      multiply<false>(a, x, row, panel, turn, sums);
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) {
      vf halves[2];
      for (int half = 0; half < 2; half++) {
        const int64_t at = panel * kPanel + half * 16;
        const vi excess = load_bits<vi>(a->sums + at) * 128;
        const vf high = __builtin_convertvector((vi)sums[m][half][0] - excess, vf);
        const vf low = __builtin_convertvector((vi)sums[m][half][1], vf);
        halves[half] = (high * 256.0f + low) * (load(a->scales + at) * x.scales[row + m]);
      }
      put_row(a, row + m, panel, 0, halves[0], halves[1]);
    }
  }

  template <bool kIsAlone>
  static void multiply(const LinearArgs* a, const FixedRows& x, int64_t row, int64_t panel, Turn turn,
                       __m512i (&sums)[M][2][2]) {
    const int64_t n_in = a->n_in, stride = group_stride(a, kFixedRows);
    const char* line = static_cast<const char*>(a->weights) + panel * n_in * kPanel;
    const uint32_t* bytes = x.words + row * n_in / 2;
#pragma GCC unroll 8
    for (int m = 0; m < M; m++)
      for (int i = 0; i < 4; i++) sums[m][i / 2][i % 2] = _mm512_setzero_si512();
    for (int64_t k = 0; k < n_in; k += 4, line += kPanel * 4, bytes += 2 * stride) {
      prefetch<kIsAlone>(&turn);
      const __m512i left = _mm512_loadu_si512(line), right = _mm512_loadu_si512(line + 64);
#pragma GCC unroll 8
      for (int m = 0; m < M; m++) {
        const __m512i high = _mm512_set1_epi32(bytes[2 * m]);
        sums[m][0][0] = _mm512_dpbusd_epi32(sums[m][0][0], high, left);
        sums[m][1][0] = _mm512_dpbusd_epi32(sums[m][1][0], high, right);
        const __m512i low = _mm512_set1_epi32(bytes[2 * m + 1]);
        sums[m][0][1] = _mm512_dpbusd_epi32(sums[m][0][1], low, left);
        sums[m][1][1] = _mm512_dpbusd_epi32(sums[m][1][1], low, right);
      }
    }
  }
};

}  // namespace

extern "C" STEPGRAPH_EXPORT void linear_int8_vnni(const void* args, Team* team) {
  const LinearArgs* a = static_cast<const LinearArgs*>(args);
  auto cut = [&](const Bf16* x, float inverse, uint32_t* group, int64_t column, int64_t stride) {
    for (int64_t i = 0; i < a->n_in; i += kLanes) {
      const __m512i fixed = fixed_of(x + i, inverse);
      uint32_t high[4], low[4];
      put_bytes(high, _mm512_add_epi32(_mm512_srai_epi32(fixed, 8), _mm512_set1_epi32(128)));
      put_bytes(low, fixed);
      for (int j = 0; j < 4; j++, group += 2 * stride) {
        group[2 * column] = high[j];
        group[2 * column + 1] = low[j];
      }
    }
  };
  walk_fixed<Int8FixedPass>(a, a->n_in / 2, 32767, a->n_in * kPanel, team, cut);
}

namespace {

#endif

template <int M>
struct Int8Pass {
  static void run(const LinearArgs* a, const float* prepared, int64_t row, int64_t panel, Turn) {
    const int64_t n_in = a->n_in, stride = group_stride(a, kFloatRows);
    for (int part = 0; part < kParts; part++) {
      const float* x = prepared + row * n_in;
      const int32_t* line =
          static_cast<const int32_t*>(a->weights) + panel * n_in / 4 * kPanel + part * kLanes;
      vf sums[M][2] = {};
      for (int64_t k = 0; k < n_in; k += 4, line += kPanel) {
        const vi low = load_bits<vi>(line), high = load_bits<vi>(line + 16);
        for (int i = 0; i < 4; i++, x += stride) {
          const vf w_low = __builtin_convertvector(low << (24 - 8 * i) >> 24, vf);
          const vf w_high = __builtin_convertvector(high << (24 - 8 * i) >> 24, vf);
#pragma GCC unroll 16
          for (int m = 0; m < M; m++) {
            const vf value = splat(x[m]);
            sums[m][0] += w_low * value;
            sums[m][1] += w_high * value;
          }
        }
      }
      const float* scales = a->scales + panel * kPanel + part * kLanes;
#pragma GCC unroll 16
      for (int m = 0; m < M; m++)
        put_row(a, row + m, panel, part, sums[m][0] * load(scales), sums[m][1] * load(scales + 16));
    }
  }
};

}  // namespace

extern "C" STEPGRAPH_EXPORT void linear_int8_float(const void* args, Team* team) {
  const LinearArgs* a = static_cast<const LinearArgs*>(args);
  const int64_t row_bytes = a->n_in * sizeof(float);
  const char* rows = prepare(a, static_cast<char*>(a->scratch), kFloatRows, row_bytes, team,
                             [&](char* to, int64_t begin, int64_t end) {
                               widen(a, reinterpret_cast<float*>(to), begin, end);
                             });
  walk<Int8Pass, kFloatRows>(a, reinterpret_cast<const float*>(rows), row_bytes, a->n_in * kPanel,
                            team);
}
