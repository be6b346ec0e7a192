// What the linear kernels share: their arguments, the walk over panels and rows, the epilogue.
#ifndef STEPGRAPH_OPS_LINEAR_H
#define STEPGRAPH_OPS_LINEAR_H

#include "packing.h"
#include "stepgraph_kernel.h"
#include "vec.h"

namespace {

struct LinearArgs {
  const Bf16* x;  // [rows, n_in]
  const void* weights;
  const float* scales;  // int8: [panels * 32]
  const int32_t* sums;  // int8: [panels * 32], of each output's weights
  const Bf16* bias;     // null: none
  Bf16* out;            // [rows, n_out]
  void* scratch;        // see scratch_bytes in _linear.py
  int64_t rows, n_in, n_out, x_stride;
  int32_t is_gated;  // a panel holds 16 gates and their 16 ups; out is silu(gate) * up
};

constexpr int kParts = 16 / kLanes;       // of a panel's halves
constexpr int64_t kPrivateRows = 16;      // up to here every thread prepares the rows for itself
constexpr int64_t kChunkBytes = 1 << 20;  // of prepared rows, to stay in the L2 cache
constexpr int kAhead = 4096;              // bytes of prefetch

inline int64_t panels_of(const LinearArgs* a) {
  const int64_t width = a->is_gated ? kPanel / 2 : kPanel;
  return (a->n_out + width - 1) / width;
}

// Two vectors of one row of a panel: lanes [part * kLanes, ..) of each half. Whole vectors must fit,
// or only the first outputs are written.
inline void put_row(const LinearArgs* a, int64_t row, int64_t panel, int part, vf low, vf high) {
  const int64_t n = a->n_out;
  Bf16* out = a->out + row * n;
  auto put = [&](int64_t at, vf value) {
    if (at + kLanes <= n) store(out + at, value);
    else if (at < n) store_part(out + at, value, n - at);
  };
  auto bias = [&](int64_t at, int64_t limit) {
    if (at + kLanes <= limit) return load(a->bias + at);
    return at < limit ? load_part(a->bias + at, limit - at) : vf{};
  };
  if (a->is_gated) {
    const int64_t at = panel * (kPanel / 2) + part * kLanes;
    if (a->bias) {
      low += bias(at, n);
      high += at < n ? bias(n + at, 2 * n) : vf{};
    }
    put(at, silu(low) * high);
  } else {
    const int64_t at = panel * kPanel + part * kLanes;
    if (a->bias) {
      low += bias(at, n);
      high += bias(at + 16, n);
    }
    put(at, low);
    put(at + 16, high);
  }
}

// Rows are prepared in groups, as many as one pass keeps sums of in registers: within a group, inputs
// one after another, and for each input the rows side by side. So a pass reads one stream.
struct Groups {
  int64_t size;    // rows of a group
  int64_t stride;  // rows side by side: fewer where there are no more
  Groups(int64_t rows, int64_t most) : size(most), stride(rows < most ? rows : most) {}
};

// Rows [begin, end) as floats, in groups.
inline void widen(const LinearArgs* a, float* to, int64_t most, int64_t begin, int64_t end) {
  const Groups groups(a->rows, most);
  for (int64_t row = begin; row < end; row++) {
    const Bf16* x = a->x + row * a->x_stride;
    float* column = to + row / most * most * a->n_in + row % most;
    for_lanes(a->n_in, [&](int64_t i, auto lanes) {
      float values[kLanes];
      store(values, lanes.get(x + i));
      for (int lane = 0; lane < kLanes && i + lane < a->n_in; lane++)
        column[(i + lane) * groups.stride] = values[lane];
    });
  }
}

// Calls the M-row pass with M = 1 .. kMost.
template <template <int> class Pass, int M, typename... Rest>
inline void pass_of(int64_t rows, Rest... rest) {
  if constexpr (M > 0) {
    if (rows == M) return Pass<M>::run(rest...);
    pass_of<Pass, M - 1>(rows, rest...);
  }
}

// All rows by this thread's panels. The first group reads a panel from memory, the others from the
// cache.
template <template <int> class Pass, int kMost, typename Prepared>
inline void walk(const LinearArgs* a, const Prepared& prepared, int64_t row_bytes, Team* team) {
  int64_t begin, end;
  team_range(team, panels_of(a), 1, &begin, &end);
  const int64_t groups = kChunkBytes / row_bytes / kMost;
  const int64_t chunk = (groups > 1 ? groups : 1) * kMost;
  for (int64_t first = 0; first < a->rows; first += chunk) {
    const int64_t last = first + chunk < a->rows ? first + chunk : a->rows;
    for (int64_t panel = begin; panel < end; panel++)
      for (int64_t row = first; row < last; row += kMost) {
        const int64_t rows = last - row < kMost ? last - row : kMost;
        pass_of<Pass, kMost>(rows, a, prepared, row, panel, row == first);
      }
  }
}

// The rows that this thread prepares, and where: all of them for itself, or a share for all.
template <typename Function>
inline char* prepare(const LinearArgs* a, int most, int64_t row_bytes, Team* team, Function fill) {
  char* to = static_cast<char*>(a->scratch);
  if (a->rows <= kPrivateRows) {
    const int64_t groups = (a->rows + most - 1) / most;
    to += team->thread * (a->rows < most ? a->rows : groups * most) * row_bytes;
    fill(to, 0, a->rows);
    return to;
  }
  int64_t begin, end;
  team_range(team, a->rows, most, &begin, &end);
  fill(to, begin, end);
  team_barrier(team);
  return to;
}

}  // namespace

#endif
