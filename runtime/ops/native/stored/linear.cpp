// Linear layers over packed stored weights of one kind.
//
// With VNNI a row of x becomes 16-bit fixed point in two bytes (see ../linear_q8_0.cpp), so that the integer
// sums over inputs that share a scale are exact: below 32 * 255 * 32639 = 2.7e8. Elsewhere weights are
// widened to float.
#include "../linear.h"
#include "panels.h"

#if defined(__AVX512VNNI__)
#include "../fixed_point.h"
#endif

namespace {

inline int64_t panel_bytes(const LinearArgs* a) { return a->n_in / Kind::kInputs * kUnitBytes; }

constexpr int64_t kBlockLines = (kPackedBlock + kLine - 1) / kLine;

// A group's share of the prefetches of its block.
template <bool kIsAlone>
inline void prefetch_group(int64_t group, Turn* turn) {
  const int64_t first = group * kBlockLines / kGroups, last = (group + 1) * kBlockLines / kGroups;
  for (int64_t line = first; line < last; line++) prefetch<kIsAlone>(turn);
}

#if defined(__AVX512VNNI__)

// Of a row and the inputs that share a scale: for 4 inputs the high bytes, then the low ones; last the sum
// of all, as a float where there are mins, else times -zero.
constexpr int64_t kSubGroups = Kind::kShared / 4;
constexpr int64_t kSubWords = 2 * kSubGroups + 1;
constexpr int64_t kBlockWords = kSubs * kSubWords;
constexpr float kLargest = 32639;

inline __m512i bits_to(__m512i v, int shift, int bits, int lowest) {
  const __m512i mask = _mm512_set1_epi8(static_cast<char>(((1 << bits) - 1) << lowest));
  if (shift > lowest) v = _mm512_srli_epi16(v, shift - lowest);
  if (shift < lowest) v = _mm512_slli_epi16(v, lowest - shift);
  return _mm512_and_si512(v, mask);
}

// The codes of 4 inputs and half of the outputs, as bytes that are multiplied.
inline __m512i codes_of(const uint8_t* block, int64_t group, int half) {
  __m512i codes = _mm512_setzero_si512();
  for_planes([&](int bits, int lowest, int64_t offset) {
    const Place place = place_of(bits, group, half);
    const __m512i line = _mm512_loadu_si512(block + offset + place.line * kLineBytes);
    codes = _mm512_or_si512(codes, bits_to(line, place.shift, bits, lowest));
  });
  if constexpr (Kind::kIsTable) {
    const __m128i levels = _mm_loadu_si128(reinterpret_cast<const __m128i*>(Kind::kLevels));
    codes = _mm512_shuffle_epi8(_mm512_broadcast_i32x4(levels), codes);
  }
  return codes;
}

inline vf small_of(const uint8_t* p) {
  return (vf)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}

template <int M>
struct FixedPass {
  static void run(const LinearArgs* a, const FixedRows& x, int64_t row, int64_t panel, Turn turn) {
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
    const int64_t units = a->n_in / Kind::kInputs, stride = group_stride(a, kFixedRows);
    const uint8_t* unit = static_cast<const uint8_t*>(a->weights) + panel * units * kUnitBytes;
    words += row * units * kUnitBlocks * kBlockWords;
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) totals[m][0] = totals[m][1] = vf{};
    for (int64_t u = 0; u < units; u++, unit += kUnitBytes) {
      const uint8_t* block = unit + kHeadBytes;
      prefetch<kIsAlone>(&turn);
      for (int64_t b = 0; b < kUnitBlocks; b++, block += kPackedBlock) {
#pragma GCC unroll 2
        for (int64_t sub = 0; sub < kSubs; sub++, words += kSubWords * stride)
          add_sub<kIsAlone>(unit, block, sub, words, stride, &turn, totals);
      }
    }
  }

  // The inputs that share a scale.
  template <bool kIsAlone>
  static inline __attribute__((always_inline)) void add_sub(const uint8_t* unit, const uint8_t* block,
                                                            int64_t sub, const uint32_t* words,
                                                            int64_t stride, Turn* turn,
                                                            vf (&totals)[M][2]) {
    const uint32_t* last = words + 2 * kSubGroups * stride;
    __m512i sums[M][2][2];  // [row][half of the panel][byte of x]
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) {
      sums[m][0][0] = sums[m][1][0] = _mm512_setzero_si512();
      sums[m][0][1] = sums[m][1][1] = kHasMin ? _mm512_setzero_si512() : _mm512_set1_epi32(last[m]);
    }
#pragma GCC unroll 8
    for (int64_t j = 0; j < kSubGroups; j++) {
      const int64_t group = sub * kSubGroups + j;
      prefetch_group<kIsAlone>(group, turn);
      const __m512i left = codes_of(block, group, 0), right = codes_of(block, group, 1);
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
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
      vf scale = load_half(unit + half * kPanel), min = {};
      if constexpr (kHasMin) min = load_half(unit + 2 * kPanel + half * kPanel) * float(Kind::kSign);
      if constexpr (Kind::kIsSuper) {
        const uint8_t* small = block + kCodeBytes + sub * kPanel + half * 16;
        scale *= small_of(small);
        if constexpr (kHasMin) min *= small_of(small + kSubBytes);
      }
#pragma GCC unroll 8
      for (int m = 0; m < M; m++) {
        const vi sum = ((vi)sums[m][half][0] << 8) + (vi)sums[m][half][1];
        totals[m][half] += __builtin_convertvector(sum, vf) * scale;
        if constexpr (kHasMin) totals[m][half] += splat(load_bits<float>(last + m)) * min;
      }
    }
  }
};

inline uint32_t last_word(int32_t sum) {
  if constexpr (!kHasMin) return static_cast<uint32_t>(-Kind::kZero * sum);
  const float value = static_cast<float>(sum);
  return load_bits<uint32_t>(&value);
}

// One row's words, `stride` apart.
inline void cut_row(const Bf16* x, int64_t n_in, float inverse, uint32_t* words, int64_t column,
                    int64_t stride) {
  __m512i sum = _mm512_setzero_si512();
  for (int64_t k = 0; k < n_in; k += kLanes) {
    const __m512i fixed = fixed_of(x + k, inverse);
    uint32_t high[4], low[4];
    put_bytes(high, _mm512_srai_epi32(_mm512_add_epi32(fixed, _mm512_set1_epi32(128)), 8));
    put_bytes(low, fixed);
    for (int j = 0; j < 4; j++, words += 2 * stride) {
      words[2 * column] = high[j];
      words[2 * column + 1] = low[j];
    }
    sum = _mm512_add_epi32(sum, fixed);
    if ((k + kLanes) % Kind::kShared) continue;
    words[column] = last_word(_mm512_reduce_add_epi32(sum));
    words += stride;
    sum = _mm512_setzero_si512();
  }
}

}  // namespace

extern "C" STEPGRAPH_EXPORT void NAMED(linear, _vnni)(const void* args, Team* team) {
  const LinearArgs* a = static_cast<const LinearArgs*>(args);
  auto cut = [&](const Bf16* x, float inverse, uint32_t* words, int64_t column, int64_t stride) {
    cut_row(x, a->n_in, inverse, words, column, stride);
  };
  walk_fixed<FixedPass>(a, a->n_in / kBlock * kBlockWords, kLargest, panel_bytes(a), team, cut);
}

namespace {

#endif

constexpr int kWidenedRows = 4;

// The codes of 4 inputs, a byte each, of kLanes outputs.
inline vu packed_codes(const uint8_t* block, int64_t group, int half, int part) {
  vu codes = {};
  for_planes([&](int bits, int lowest, int64_t offset) {
    const Place place = place_of(bits, group, half);
    const vu line = load_bits<vu>(block + offset + place.line * kLineBytes + part * kLanes * 4);
    codes |= (line >> place.shift & 0x01010101u * ((1u << bits) - 1)) << lowest;
  });
  return codes;
}

inline vf levels_of(vu codes) {
  if constexpr (Kind::kIsTable)
    for (int lane = 0; lane < kLanes; lane++) codes[lane] = Kind::kLevels[codes[lane]];
  return __builtin_convertvector((vi)codes - Kind::kZero, vf);
}

inline vf widened_small(const uint8_t* p) {
  typedef int8_t Small __attribute__((vector_size(kLanes)));
  return __builtin_convertvector(load_bits<Small>(p), vf);
}

template <int M>
struct WidenedPass {
  static void run(const LinearArgs* a, const float* prepared, int64_t row, int64_t panel, Turn) {
    const int64_t units = a->n_in / Kind::kInputs, stride = group_stride(a, kWidenedRows);
    for (int part = 0; part < kParts; part++) {
      const uint8_t* unit = static_cast<const uint8_t*>(a->weights) + panel * units * kUnitBytes;
      const float* x = prepared + row * a->n_in;
      vf sums[M][2] = {};
      for (int64_t u = 0; u < units; u++, unit += kUnitBytes)
        for (int64_t b = 0; b < kUnitBlocks; b++) {
          add_block(unit, unit + kHeadBytes + b * kPackedBlock, part, x, stride, sums);
          x += kBlock * stride;
        }
#pragma GCC unroll 4
      for (int m = 0; m < M; m++) put_row(a, row + m, panel, part, sums[m][0], sums[m][1]);
    }
  }

  static void add_block(const uint8_t* unit, const uint8_t* block, int part, const float* x, int64_t stride,
                        vf (&sums)[M][2]) {
    for (int64_t sub = 0; sub < kSubs; sub++) {
      vf scales[2], mins[2] = {};
      for (int half = 0; half < 2; half++) {
        const int64_t output = half * 16 + part * kLanes;
        scales[half] = load_half(unit + 2 * output);
        if constexpr (kHasMin) mins[half] = load_half(unit + 2 * (kPanel + output)) * float(Kind::kSign);
        if constexpr (Kind::kIsSuper) {
          const uint8_t* small = block + kCodeBytes + sub * kPanel + output;
          scales[half] *= widened_small(small);
          if constexpr (kHasMin) mins[half] *= widened_small(small + kSubBytes);
        }
      }
#pragma GCC unroll 8
      for (int64_t j = 0; j < Kind::kShared / 4; j++, x += 4 * stride) {
        const int64_t group = sub * (Kind::kShared / 4) + j;
        add_group(packed_codes(block, group, 0, part), packed_codes(block, group, 1, part), scales, mins, x,
                  stride, sums);
      }
    }
  }

  // 4 inputs.
  static inline __attribute__((always_inline)) void add_group(vu low_codes, vu high_codes,
                                                              const vf (&scales)[2], const vf (&mins)[2],
                                                              const float* x, int64_t stride,
                                                              vf (&sums)[M][2]) {
    for (int i = 0; i < 4; i++, x += stride) {
      const vf low = levels_of(low_codes >> 8 * i & 255u) * scales[0] + mins[0];
      const vf high = levels_of(high_codes >> 8 * i & 255u) * scales[1] + mins[1];
#pragma GCC unroll 4
      for (int m = 0; m < M; m++) {
        const vf value = splat(x[m]);
        sums[m][0] += low * value;
        sums[m][1] += high * value;
      }
    }
  }
};

inline void widen_rows(const LinearArgs* a, float* to, int64_t begin, int64_t end) {
  const int64_t stride = group_stride(a, kWidenedRows);
  for (int64_t row = begin; row < end; row += stride) {
    const int64_t count = end - row < stride ? end - row : stride;
    widen_group(a->x + row * a->x_stride, a->x_stride, a->n_in, count, stride, to + row * a->n_in);
  }
}

}  // namespace

extern "C" STEPGRAPH_EXPORT void NAMED(linear, _float)(const void* args, Team* team) {
  const LinearArgs* a = static_cast<const LinearArgs*>(args);
  const int64_t row_bytes = a->n_in * sizeof(float);
  auto fill = [&](char* to, int64_t begin, int64_t end) {
    widen_rows(a, reinterpret_cast<float*>(to), begin, end);
  };
  const char* rows = prepare(a, static_cast<char*>(a->scratch), kWidenedRows, row_bytes, team, fill);
  walk<WidenedPass, kWidenedRows>(a, reinterpret_cast<const float*>(rows), row_bytes, panel_bytes(a), team);
}
