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
  Bf16* out;            // [rows, n_out], rows out_stride apart
  void* scratch;        // see _scratch_floats in linear.py
  int64_t rows, n_in, n_out, x_stride, out_stride;
  int32_t is_gated;  // a panel holds 16 gates and their 16 ups; out is silu(gate) * up
};

// Rows that one pass keeps sums of: 2 vectors a row, and those of the weights, in the registers.
constexpr int kFloatRows = kLanes == 16 ? 12 : kLanes == 8 ? 5 : 4;
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
  Bf16* out = a->out + row * a->out_stride;
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

// Rows are prepared in groups, no more than one pass keeps sums of in registers, and all as large as one
// another but for the last: within a group, inputs one after another, and for each input the rows side by
// side. So a pass reads one stream.
inline int64_t group_stride(const LinearArgs* a, int64_t most) {
  const int64_t groups = (a->rows + most - 1) / most;
  return groups > 1 ? (a->rows + groups - 1) / groups : a->rows;
}

// Of two blocks that lie `size` rows apart in a transposition: each gets the other's lanes.
inline void exchange(vf* a, vf* b, int size) {
  vi first, second;
  for (int i = 0; i < kLanes; i++) {
    first[i] = i & size ? kLanes + i - size : i;
    second[i] = i & size ? kLanes + i : i + size;
  }
#if defined(__clang__)
  const vf old_a = *a, old_b = *b;
  for (int i = 0; i < kLanes; i++) {
    (*a)[i] = first[i] < kLanes ? old_a[first[i]] : old_b[first[i] - kLanes];
    (*b)[i] = second[i] < kLanes ? old_a[second[i]] : old_b[second[i] - kLanes];
  }
#else
  const vf low = __builtin_shuffle(*a, *b, first);
  *b = __builtin_shuffle(*a, *b, second);
  *a = low;
#endif
}

inline void transpose(vf (&block)[kLanes]) {
#pragma GCC unroll 4
  for (int size = 1; size < kLanes; size *= 2)
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; i++)
      if (!(i & size)) exchange(block + i, block + i + size, size);
}

static_assert(kFloatRows <= kLanes, "a group is transposed as one block");

// `count` rows of one group, side by side for each input.
inline void widen_group(const Bf16* x, int64_t x_stride, int64_t n_in, int64_t count, int64_t stride,
                        float* to) {
  for_lanes(n_in, [&](int64_t k, auto lanes) {
    vf block[kLanes] = {};
    for (int64_t m = 0; m < count; m++) block[m] = lanes.get(x + m * x_stride + k);
    if (stride == 1) return lanes.put(to + k, block[0]);
    transpose(block);
    // A whole vector reaches into the inputs to come; at the end there are none.
    for (int i = 0; i < kLanes && k + i < n_in; i++) {
      float* at = to + (k + i) * stride;
      if (stride >= kLanes || (n_in - k - i) * stride >= kLanes) store(at, block[i]);
      else store_part(at, block[i], stride);
    }
  });
}

// Rows [begin, end) as floats, in groups; `begin` starts one.
inline void widen(const LinearArgs* a, float* to, int64_t begin, int64_t end) {
  const int64_t stride = group_stride(a, kFloatRows);
  for (int64_t row = begin; row < end; row += stride) {
    const int64_t count = end - row < stride ? end - row : stride;
    widen_group(a->x + row * a->x_stride, a->x_stride, a->n_in, count, stride, to + row * a->n_in);
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

// One group's turn with a panel. A group that is alone reads the panel from memory, some way behind its
// prefetch. Of several, each brings its share of the next panel near, so that memory is never idle.
struct Turn {
  int64_t group, count;
  const char* ahead;  // what to prefetch next
  int64_t step;
};

constexpr int64_t kLine = 128;  // bytes of a panel that a pass takes at a time

inline Turn turn_of(int64_t group, int64_t count, const char* panel, const char* next, int64_t bytes) {
  if (count == 1) return {group, count, panel + kAhead, kLine};
  return {group, count, next + group * (bytes / count), (kLine + count - 1) / count};
}

// Once for each `kLine` bytes of the panel.
template <bool kIsAlone>
inline void prefetch(Turn* turn) {
  if constexpr (kIsAlone) {
    __builtin_prefetch(turn->ahead);
    __builtin_prefetch(turn->ahead + 64);
  } else {
    __builtin_prefetch(turn->ahead, 0, 2);  // it is not to drive this panel out of the L1 cache
  }
  turn->ahead += turn->step;
}

// All rows by this thread's panels, of `bytes` each.
template <template <int> class Pass, int kMost, typename Prepared>
inline void walk(const LinearArgs* a, const Prepared& prepared, int64_t row_bytes, int64_t bytes,
                 Team* team) {
  const char* panels = static_cast<const char*>(a->weights);
  int64_t begin, end;
  team_range(team, panels_of(a), 1, &begin, &end);
  if (a->rows == 0) return;
  const int64_t each = group_stride(a, kMost), groups = kChunkBytes / row_bytes / each;
  const int64_t chunk = (groups > 1 ? groups : 1) * each;
  for (int64_t first = 0; first < a->rows; first += chunk) {
    const int64_t last = first + chunk < a->rows ? first + chunk : a->rows;
    const int64_t turns = (last - first + each - 1) / each;
    for (int64_t panel = begin; panel < end; panel++) {
      const char* next = panels + (panel + 1 < end ? panel + 1 : panel) * bytes;
      for (int64_t row = first; row < last; row += each) {
        const int64_t rows = last - row < each ? last - row : each;
        const Turn turn = turn_of((row - first) / each, turns, panels + panel * bytes, next, bytes);
        pass_of<Pass, kMost>(rows, a, prepared, row, panel, turn);
      }
    }
  }
}

// The rows that this thread prepares from `to` on, and where: all of them for itself, or a share for
// all.
template <typename Function>
inline char* prepare(const LinearArgs* a, char* to, int most, int64_t row_bytes, Team* team,
                     Function fill) {
  if (a->rows == 0) return to;
  const int64_t each = group_stride(a, most);
  if (a->rows <= kPrivateRows) {
    to += team->thread * ((a->rows + each - 1) / each * each) * row_bytes;
    fill(to, 0, a->rows);
    return to;
  }
  int64_t begin, end;
  team_range(team, a->rows, each, &begin, &end);
  fill(to, begin, end);
  team_barrier(team);
  return to;
}

}  // namespace

#endif
