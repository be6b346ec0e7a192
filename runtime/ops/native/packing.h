// The order of packed weights, and reading rows back out of it.
//
// A panel holds 32 outputs. Within it, inputs come in groups of 4 bytes (2 bfloat16 or 4 int8), and
// each group holds the 32 outputs one after another: [panel][input / group][32][group]. So a
// walk over one panel is one stream of memory; half a panel's line is what AMX calls a tile row.
#ifndef STEPGRAPH_OPS_PACKING_H
#define STEPGRAPH_OPS_PACKING_H

#include "vec.h"

#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace {

constexpr int kPanel = 32;

// Q8_0: [panel][input / 32] blocks, each 8 groups as above and then the float16 scales of the 32
// outputs. 128 is added to each integer, since one operand of the byte dot product has no sign.
constexpr int64_t kBlockInputs = 32;
constexpr int64_t kBlockBytes = kBlockInputs * kPanel + 2 * kPanel;

inline void unpack_row(const uint32_t* packed, int64_t output, int64_t n_in, uint32_t* row) {
  const int64_t groups = n_in / 2;
  const uint32_t* source = packed + output / kPanel * groups * kPanel + output % kPanel;
  for (int64_t k = 0; k < groups; k++) row[k] = source[k * kPanel];
}

inline void unpack_row_int8(const int8_t* packed, const float* scales, int64_t output, int64_t n_in,
                            Bf16* row) {
  const int8_t* source = packed + output / kPanel * n_in * kPanel + output % kPanel * 4;
  for (int64_t k = 0; k < n_in; k += 4) {
    float values[kLanes] = {};
    for (int i = 0; i < 4; i++) values[i] = source[k * kPanel + i] * scales[output];
    store_part(row + k, load(values), 4);
  }
}

// float16 that is finite.
inline vf load_half(const void* p) {
#if defined(__AVX512F__)
  return (vf)_mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
#elif defined(__F16C__)
  return (vf)_mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p)));
#else
  const vu bits = __builtin_convertvector(load_bits<vh>(p), vu);
  const vu magnitude = (vu)((vf)((bits & 0x7fffu) << 13) * splat(0x1p112f));
  return (vf)(magnitude | (bits & 0x8000u) << 16);
#endif
}

inline void unpack_row_q8_0(const uint8_t* packed, int64_t output, int64_t n_in, Bf16* row) {
  const uint8_t* block = packed + output / kPanel * (n_in / kBlockInputs) * kBlockBytes;
  const int64_t place = output % kPanel;
  for (int64_t k = 0; k < n_in; k += kBlockInputs, block += kBlockBytes) {
    const uint8_t* half = block + kBlockInputs * kPanel + place / kLanes * kLanes * 2;
    const float scale = load_half(half)[place % kLanes];
    float values[kBlockInputs];
    for (int i = 0; i < kBlockInputs; i++)
      values[i] = (block[i / 4 * 4 * kPanel + place * 4 + i % 4] - 128) * scale;
    for (int i = 0; i < kBlockInputs; i += kLanes) store(row + k + i, load(values + i));
  }
}

}  // namespace

#endif
