// Linear layers over packed Q8_0 weights: 8-bit integers, a scale for each 32 inputs of an output.
//
// With VNNI a row of x becomes 16-bit fixed point, 256 * high + low with bytes that both have a sign
// (its largest element is 32639 = 127 * 256 + 127), so that two byte dot products give a block's exact
// integer sum: below 32 * 255 * 32639 = 2.7e8 with the 128 that each weight is raised by, and what
// that adds is taken off once a block. Elsewhere weights are widened to float, which is exact.
#include "linear.h"

#if defined(__AVX512VNNI__)
#include "fixed_point.h"
#endif

namespace {

inline int64_t panel_bytes(const LinearArgs* a) { return a->n_in / kBlockInputs * kBlockBytes; }

#if defined(__AVX512VNNI__)

// Of a row and a block: for 4 inputs the high bytes, then the low ones; last -128 * the sum of all.
constexpr int64_t kBlockWords = kBlockInputs / 2 + 1;
constexpr float kLargest = 32639;

template <int M>
struct Q8FixedPass {
  static void run(const LinearArgs* a, const FixedRows& x, int64_t row, int64_t panel,
                  Turn turn) {
    vf totals[M][2];
    if (turn.count == 1)
      multiply<true>(a, x.words, row, panel, turn, totals);
    else
      multiply<false>(a, x.words, row, panel, turn, totals);
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) {
      const vf scale = splat(x.scales[row + m]);
      put_row(a, row + m, panel, 0, totals[m][0] * scale, totals[m][1] * scale);
    }
  }

  template <bool kIsAlone>
  static void multiply(const LinearArgs* a, const uint32_t* words, int64_t row, int64_t panel, Turn turn,
                       vf (&totals)[M][2]) {
    const int64_t blocks = a->n_in / kBlockInputs, stride = group_stride(a, kFixedRows);
    const char* line = static_cast<const char*>(a->weights) + panel * blocks * kBlockBytes;
    words += row * blocks * kBlockWords;
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) totals[m][0] = totals[m][1] = vf{};
    for (int64_t block = 0; block < blocks; block++) {
      __m512i sums[M][2][2];  // [row][half of the panel][byte of x]
#pragma GCC unroll 8
      for (int m = 0; m < M; m++) {
        sums[m][0][0] = sums[m][1][0] = _mm512_setzero_si512();
        sums[m][0][1] = sums[m][1][1] = _mm512_set1_epi32(words[(kBlockWords - 1) * stride + m]);
      }
#pragma GCC unroll 2
      for (int64_t group = 0; group < kBlockInputs / 4; group++, line += kPanel * 4) {
        prefetch<kIsAlone>(&turn);
        const __m512i left = _mm512_loadu_si512(line), right = _mm512_loadu_si512(line + 64);
#pragma GCC unroll 8
        for (int m = 0; m < M; m++) {
          const __m512i high = _mm512_set1_epi32(words[2 * m]);
          sums[m][0][0] = _mm512_dpbusd_epi32(sums[m][0][0], left, high);
          sums[m][1][0] = _mm512_dpbusd_epi32(sums[m][1][0], right, high);
          const __m512i low = _mm512_set1_epi32(words[2 * m + 1]);
          sums[m][0][1] = _mm512_dpbusd_epi32(sums[m][0][1], left, low);
          sums[m][1][1] = _mm512_dpbusd_epi32(sums[m][1][1], right, low);
        }
        words += 2 * stride;
      }
      if constexpr (kIsAlone) {
        __builtin_prefetch(turn.ahead);
        turn.ahead += 2 * kPanel;
      }
#pragma GCC unroll 2
      for (int half = 0; half < 2; half++) {
        const vf scale = load_half(line + half * kPanel);
#pragma GCC unroll 8
        for (int m = 0; m < M; m++) {
          const vi sum = ((vi)sums[m][half][0] << 8) + (vi)sums[m][half][1];
          totals[m][half] += __builtin_convertvector(sum, vf) * scale;
        }
      }
      line += 2 * kPanel;
      words += stride;
    }
  }
};

}  // namespace

extern "C" STEPGRAPH_EXPORT void linear_q8_0_vnni(const void* args, Team* team) {
  const LinearArgs* a = static_cast<const LinearArgs*>(args);
  const int64_t blocks = a->n_in / kBlockInputs;
  auto cut = [&](const Bf16* x, float inverse, uint32_t* words, int64_t column, int64_t stride) {
    for (int64_t block = 0; block < blocks; block++, words += stride) {
      __m512i sum = _mm512_setzero_si512();
      for (int half = 0; half < 2; half++, x += kLanes) {
        const __m512i fixed = fixed_of(x, inverse);
        uint32_t high[4], low[4];
        put_bytes(high, _mm512_srai_epi32(_mm512_add_epi32(fixed, _mm512_set1_epi32(128)), 8));
        put_bytes(low, fixed);
        for (int j = 0; j < 4; j++, words += 2 * stride) {
          words[2 * column] = high[j];
          words[2 * column + 1] = low[j];
        }
        sum = _mm512_add_epi32(sum, fixed);
      }
      words[column] = static_cast<uint32_t>(-128 * _mm512_reduce_add_epi32(sum));
    }
  };
  walk_fixed<Q8FixedPass>(a, blocks * kBlockWords, kLargest, panel_bytes(a), team, cut);
}

namespace {

#endif

template <int M>
struct Q8Pass {
  static void run(const LinearArgs* a, const float* prepared, int64_t row, int64_t panel,
                  Turn) {
    const int64_t blocks = a->n_in / kBlockInputs, stride = group_stride(a, kFloatRows);
    for (int part = 0; part < kParts; part++) {
      const float* x = prepared + row * a->n_in;
      const char* block = static_cast<const char*>(a->weights) + panel * blocks * kBlockBytes;
      vf sums[M][2] = {};
      for (const char* end = block + blocks * kBlockBytes; block < end; block += kBlockBytes) {
        const char* scales = block + kBlockInputs * kPanel + part * kLanes * 2;
        const vf low_scale = load_half(scales), high_scale = load_half(scales + kPanel);
        const char* line = block + part * kLanes * 4;
        for (int64_t group = 0; group < kBlockInputs / 4; group++, line += kPanel * 4) {
          const vu low = load_bits<vu>(line) ^ 0x80808080u;
          const vu high = load_bits<vu>(line + kPanel * 2) ^ 0x80808080u;
          for (int i = 0; i < 4; i++, x += stride) {
            const vi low_bytes = (vi)(low << (24 - 8 * i)) >> 24;
            const vi high_bytes = (vi)(high << (24 - 8 * i)) >> 24;
            const vf w_low = __builtin_convertvector(low_bytes, vf) * low_scale;
            const vf w_high = __builtin_convertvector(high_bytes, vf) * high_scale;
#pragma GCC unroll 16
            for (int m = 0; m < M; m++) {
              const vf value = splat(x[m]);
              sums[m][0] += w_low * value;
              sums[m][1] += w_high * value;
            }
          }
        }
      }
#pragma GCC unroll 16
      for (int m = 0; m < M; m++) put_row(a, row + m, panel, part, sums[m][0], sums[m][1]);
    }
  }
};

}  // namespace

extern "C" STEPGRAPH_EXPORT void linear_q8_0_float(const void* args, Team* team) {
  const LinearArgs* a = static_cast<const LinearArgs*>(args);
  const int64_t row_bytes = a->n_in * sizeof(float);
  const char* rows = prepare(a, static_cast<char*>(a->scratch), kFloatRows, row_bytes, team,
                             [&](char* to, int64_t begin, int64_t end) {
                               widen(a, reinterpret_cast<float*>(to), begin, end);
                             });
  walk<Q8Pass, kFloatRows>(a, reinterpret_cast<const float*>(rows), row_bytes, panel_bytes(a), team);
}
