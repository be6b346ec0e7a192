// The order of packed weights, and reading rows back out of it.
//
// A panel holds 32 outputs. Within it, inputs come in groups of 4 bytes (2 bfloat16 or 4 int8), and
// each group holds the 32 outputs one after another: [panel][input / group][32][group]. So a
// walk over one panel is one stream of memory; half a panel's line is what AMX calls a tile row.
#ifndef STEPGRAPH_OPS_PACKING_H
#define STEPGRAPH_OPS_PACKING_H

#include "vec.h"

namespace {

constexpr int kPanel = 32;

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

}  // namespace

#endif
