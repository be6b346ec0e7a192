// Bringing a plain weight matrix into panels, 8-bit or not, and back.
#include <math.h>

#include "packed_rows.h"
#include "stepgraph_kernel.h"

namespace {

constexpr int64_t kBlock = 64;  // groups whose lines stay in the L1 cache

inline float* scales_of(const PackArgs* a) { return static_cast<float*>(a->scales); }

inline const Bf16* row_of(const PackArgs* a, int64_t row) {
  return static_cast<const Bf16*>(a->plain) + row * a->n_in;
}

// Symmetric: the largest of the row becomes 127. Ties round to even.
void quantize_row(const PackArgs* a, const Bf16* row, int8_t* to, float* scale, int32_t* sum) {
  float largest = 0;
  for (int64_t k = 0; k < a->n_in; k += kLanes) {
    const vf x = load(row + k);
    for (int lane = 0; lane < kLanes; lane++) largest = fmaxf(largest, fabsf(x[lane]));
  }
  *scale = largest / 127;
  *sum = 0;
  for (int64_t k = 0; k < a->n_in; k += kLanes) {
    const vf x = load(row + k) / splat(*scale > 0 ? *scale : 1.0f);
    for (int lane = 0; lane < kLanes; lane++) {
      const int value = static_cast<int>(rintf(x[lane]));
      *sum += value;
      const int64_t at = k + lane;
      to[at / 4 * 4 * kPanel + at % 4] = static_cast<int8_t>(value);
    }
  }
}

}  // namespace

extern "C" STEPGRAPH_EXPORT void pack_bfloat16(const void* args, Team* team) {
  const PackArgs* a = static_cast<const PackArgs*>(args);
  const int64_t groups = a->n_in / 2;
  for (int64_t panel; (panel = team_next(team)) < panels_of(a);) {
    uint32_t* to = static_cast<uint32_t*>(a->packed) + panel * groups * kPanel;
    for (int64_t first = 0; first < groups; first += kBlock) {
      const int64_t last = first + kBlock < groups ? first + kBlock : groups;
      for (int64_t place = 0; place < kPanel; place++) {
        const int64_t row = plain_row(a, panel, place);
        if (row < 0) continue;
        const Bf16* from = row_of(a, row);
        for (int64_t k = first; k < last; k++) memcpy(to + k * kPanel + place, from + 2 * k, 4);
      }
    }
  }
}

extern "C" STEPGRAPH_EXPORT void pack_int8(const void* args, Team* team) {
  const PackArgs* a = static_cast<const PackArgs*>(args);
  for (int64_t panel; (panel = team_next(team)) < panels_of(a);) {
    int8_t* to = static_cast<int8_t*>(a->packed) + panel * a->n_in * kPanel;
    for (int64_t place = 0; place < kPanel; place++) {
      const int64_t row = plain_row(a, panel, place), at = panel * kPanel + place;
      if (row >= 0) quantize_row(a, row_of(a, row), to + 4 * place, scales_of(a) + at, a->sums + at);
    }
  }
}

extern "C" STEPGRAPH_EXPORT void pack_q8_0(const void* args, Team* team) {
  const PackArgs* a = static_cast<const PackArgs*>(args);
  const int64_t blocks = a->n_in / kBlockInputs;
  for (int64_t panel; (panel = team_next(team)) < panels_of(a);) {
    for (int64_t place = 0; place < kPanel; place++) {
      const int64_t row = plain_row(a, panel, place);
      if (row < 0) continue;
      const char* from = static_cast<const char*>(a->plain) + row * a->n_in;
      const char* scale = static_cast<const char*>(a->scales) + row * blocks * 2;
      char* to = static_cast<char*>(a->packed) + panel * blocks * kBlockBytes;
      for (int64_t block = 0; block < blocks; block++, scale += 2, to += kBlockBytes) {
        for (int64_t group = 0; group < kBlockInputs / 4; group++, from += 4) {
          const uint32_t raised = load_bits<uint32_t>(from) ^ 0x80808080u;
          memcpy(to + (group * kPanel + place) * 4, &raised, 4);
        }
        memcpy(to + kBlockInputs * kPanel + place * 2, scale, 2);
      }
    }
  }
}

extern "C" STEPGRAPH_EXPORT void unpack_bfloat16(const void* args, Team* team) {
  const PackArgs* a = static_cast<const PackArgs*>(args);
  int64_t begin, end;
  team_range(team, a->n_out, kPanel, &begin, &end);
  for (int64_t row = begin; row < end; row++)
    unpack_row(static_cast<const uint32_t*>(a->packed), packed_row(a, row), a->n_in,
               static_cast<uint32_t*>(a->plain) + row * a->n_in / 2);
}

extern "C" STEPGRAPH_EXPORT void unpack_int8(const void* args, Team* team) {
  const PackArgs* a = static_cast<const PackArgs*>(args);
  int64_t begin, end;
  team_range(team, a->n_out, kPanel, &begin, &end);
  for (int64_t row = begin; row < end; row++)
    unpack_row_int8(static_cast<const int8_t*>(a->packed), scales_of(a), packed_row(a, row), a->n_in,
                    static_cast<Bf16*>(a->plain) + row * a->n_in);
}

extern "C" STEPGRAPH_EXPORT void unpack_q8_0(const void* args, Team* team) {
  const PackArgs* a = static_cast<const PackArgs*>(args);
  int64_t begin, end;
  team_range(team, a->n_out, kPanel, &begin, &end);
  for (int64_t row = begin; row < end; row++)
    unpack_row_q8_0(static_cast<const uint8_t*>(a->packed), packed_row(a, row), a->n_in,
                    static_cast<Bf16*>(a->plain) + row * a->n_in);
}
