// Rows of x as 16-bit fixed point, cut into two bytes for VNNI's byte dot products, a scale for each row.
#ifndef STEPGRAPH_OPS_FIXED_POINT_H
#define STEPGRAPH_OPS_FIXED_POINT_H

#include <immintrin.h>
#include <math.h>

#include "linear.h"

namespace {

constexpr int kFixedRows = 4;  // 4 vectors of sums a row

struct FixedRows {
  const uint32_t* words;  // in groups of rows: bytes of 4 inputs in each, as the kernel orders them
  const float* scales;    // [rows]
};

// The largest magnitude; not finite if any is not: as integers, those lie above.
inline float largest_of(const Bf16* x, int64_t n) {
  __m512i most = _mm512_setzero_si512();
  for (int64_t i = 0; i < n; i += kLanes)
    most = _mm512_max_epi32(most, (__m512i)((vi)load(x + i) & 0x7fffffff));
  const int32_t bits = _mm512_reduce_max_epi32(most);
  return load_bits<float>(&bits);
}

struct FixedScale {
  float scale, inverse;
};

// For a row whose largest becomes `top`. A row that is not finite gets a scale that is not, and so do its
// outputs; one so small that the inverse would not be finite counts as zeros.
inline FixedScale scale_of(const Bf16* x, int64_t n, float top) {
  const float largest = largest_of(x, n);
  if (!isfinite(largest)) return {NAN, 0.0f};
  return {largest / top, largest > 1e-30f ? top / largest : 0.0f};
}

inline __m512i fixed_of(const Bf16* x, float inverse) {
  return _mm512_cvtps_epi32((__m512)(load(x) * inverse));
}

// The low byte of each of 16 numbers, in fours.
inline void put_bytes(uint32_t (&words)[4], __m512i numbers) {
  _mm_storeu_si128((__m128i*)words, _mm512_cvtepi32_epi8(numbers));
}

// Rows prepared by `cut(x, inverse, group, column, stride)`, which writes one row's words into its group;
// a row's largest becomes `top`. Scales lie behind all rows, a set for each thread where every thread
// prepares all of them for itself.
template <template <int> class Pass, typename Function>
inline void walk_fixed(const LinearArgs* a, int64_t row_words, float top, int64_t panel_bytes, Team* team,
                       Function cut) {
  const bool is_private = a->rows <= kPrivateRows;
  if (a->rows == 0) return;
  const int64_t each = group_stride(a, kFixedRows), padded = (a->rows + each - 1) / each * each;
  const int64_t sets = is_private ? team->num_threads : 1, row_bytes = row_words * sizeof(uint32_t);
  char* scratch = static_cast<char*>(a->scratch);
  float* scales = reinterpret_cast<float*>(scratch + sets * padded * row_bytes);
  if (is_private) scales += team->thread * a->rows;
  auto fill = [&](char* to, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row++) {
      const Bf16* x = a->x + row * a->x_stride;
      const FixedScale scale = scale_of(x, a->n_in, top);
      const int64_t column = row % each;
      scales[row] = scale.scale;
      uint32_t* group = reinterpret_cast<uint32_t*>(to) + (row - column) * row_words;
      cut(x, scale.inverse, group, column, each);
    }
  };
  const char* rows = prepare(a, scratch, kFixedRows, row_bytes, team, fill);
  const FixedRows fixed = {reinterpret_cast<const uint32_t*>(rows), scales};
  walk<Pass, kFixedRows>(a, fixed, row_bytes, panel_bytes, team);
}

}  // namespace

#endif
