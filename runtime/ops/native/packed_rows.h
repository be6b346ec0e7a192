// Arguments of packing, and which row of the plain matrix each place of a panel is.
#ifndef STEPGRAPH_OPS_PACKED_ROWS_H
#define STEPGRAPH_OPS_PACKED_ROWS_H

#include "packing.h"

namespace {

struct PackArgs {
  void* plain;   // [n_out, n_in] bfloat16, or int8 to be packed as Q8_0; gates before ups
  void* packed;
  void* scales;  // int8: float [panels * 32]; Q8_0: float16 [n_out, n_in / 32], to be packed
  int32_t* sums; // int8: [panels * 32]
  int64_t n_out, n_in;
  int32_t is_gated;
};

inline int64_t panels_of(const PackArgs* a) {
  const int64_t outputs = a->is_gated ? a->n_out / 2 : a->n_out;
  const int64_t width = a->is_gated ? kPanel / 2 : kPanel;
  return (outputs + width - 1) / width;
}

// The plain row at a place of a panel; -1 after the last.
inline int64_t plain_row(const PackArgs* a, int64_t panel, int64_t place) {
  if (!a->is_gated) {
    const int64_t row = panel * kPanel + place;
    return row < a->n_out ? row : -1;
  }
  const int64_t half = a->n_out / 2, row = panel * (kPanel / 2) + place % (kPanel / 2);
  return row < half ? place / (kPanel / 2) * half + row : -1;
}

inline int64_t packed_row(const PackArgs* a, int64_t row) {
  if (!a->is_gated) return row;
  const int64_t half = a->n_out / 2, at = row % half;
  return at / 16 * kPanel + row / half * 16 + at % 16;
}

}  // namespace

#endif
