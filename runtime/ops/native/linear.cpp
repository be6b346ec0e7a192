// Linear layers over packed bfloat16 weights: weights widened to float in registers, float sums.
//
// On CPUs whose bfloat16 dot product takes as long as four float multiply-adds this is the faster
// way, and it needs no instructions of its own. A row's sums are taken in one order whatever other
// rows there are. Other paths: linear_dot.cpp, linear_tiles.cpp; which one runs is measured.
#include "linear.h"

namespace {

// Where a pass finds the panel, and what it leaves behind.
enum class Panel {
  kPacked,      // widened in registers
  kPackedKept,  // the same, and the floats are kept for the groups to come
  kFloats,      // as the first group kept it
};

template <int M, Panel kPanelIs>
inline void multiply(const float* x, int64_t stride, const uint32_t* line, float* floats,
                     int64_t n_in, Turn turn, vf (&sums)[M][2]) {
#pragma GCC unroll 16
  for (int m = 0; m < M; m++) sums[m][0] = sums[m][1] = vf{};
  auto add = [&](const float* values, vf low, vf high) {
#pragma GCC unroll 16
    for (int m = 0; m < M; m++) {
      const vf value = splat(values[m]);
      sums[m][0] += low * value;
      sums[m][1] += high * value;
    }
  };
  for (int64_t k = 0; k < n_in; k += 2, line += kPanel, x += 2 * stride) {
    prefetch<kPanelIs == Panel::kPacked>(&turn);
    if constexpr (kPanelIs == Panel::kFloats) {
      add(x, load(floats), load(floats + kLanes));
      add(x + stride, load(floats + 2 * kLanes), load(floats + 3 * kLanes));
    } else {
      const vu low = load_bits<vu>(line), high = load_bits<vu>(line + 16);
      const vf low_even = (vf)(low << 16), high_even = (vf)(high << 16);
      add(x, low_even, high_even);
      const vf low_odd = (vf)(low & 0xffff0000u), high_odd = (vf)(high & 0xffff0000u);
      add(x + stride, low_odd, high_odd);
      if constexpr (kPanelIs == Panel::kPackedKept) {
        store(floats, low_even);
        store(floats + kLanes, high_even);
        store(floats + 2 * kLanes, low_odd);
        store(floats + 3 * kLanes, high_odd);
      }
    }
    floats += 4 * kLanes;
  }
}

struct FloatRows {
  const float* rows;
  float* panel;  // this thread's panel as floats, [part][n_in][2][kLanes]
};

template <int M>
struct FloatPass {
  static void run(const LinearArgs* a, FloatRows prepared, int64_t row, int64_t panel, Turn turn) {
    const int64_t n_in = a->n_in, stride = group_stride(a, kFloatRows);
    const float* x = prepared.rows + row * n_in;
    const uint32_t* line = static_cast<const uint32_t*>(a->weights) + panel * (n_in / 2) * kPanel;
    float* floats = prepared.panel;
    for (int part = 0; part < kParts; part++, line += kLanes, floats += n_in * 2 * kLanes) {
      vf sums[M][2];
      if (turn.group > 0)
        multiply<M, Panel::kFloats>(x, stride, line, floats, n_in, turn, sums);
      else if (turn.count > 1)
        multiply<M, Panel::kPackedKept>(x, stride, line, floats, n_in, turn, sums);
      else
        multiply<M, Panel::kPacked>(x, stride, line, floats, n_in, turn, sums);
#pragma GCC unroll 16
      for (int m = 0; m < M; m++) put_row(a, row + m, panel, part, sums[m][0], sums[m][1]);
    }
  }
};

}  // namespace

extern "C" STEPGRAPH_EXPORT void linear_bfloat16_float(const void* args, Team* team) {
  const LinearArgs* a = static_cast<const LinearArgs*>(args);
  float* scratch = static_cast<float*>(a->scratch);
  float* panel = scratch + team->thread * a->n_in * kPanel;
  if (a->rows > kFloatRows) scratch += team->num_threads * a->n_in * kPanel;
  const int64_t row_bytes = a->n_in * sizeof(float), panel_bytes = a->n_in * kPanel * sizeof(Bf16);
  const char* rows = prepare(a, reinterpret_cast<char*>(scratch), kFloatRows, row_bytes, team,
                             [&](char* to, int64_t begin, int64_t end) {
                               widen(a, reinterpret_cast<float*>(to), begin, end);
                             });
  walk<FloatPass, kFloatRows>(a, FloatRows{reinterpret_cast<const float*>(rows), panel}, row_bytes,
                             panel_bytes, team);
}
