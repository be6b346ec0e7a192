// Norms, rotary positions, gated activations: each row by itself, sums in float32.
#include <math.h>

#include "stepgraph_kernel.h"
#include "vec.h"

namespace {

struct NormArgs {
  const void* x;  // [rows, width]; null: only the norm of `residual`
  void* residual; // [rows, width]; becomes residual + x
  const void* weight;
  void* out;
  int64_t rows, width, x_stride, residual_stride;
  float eps;
};

template <typename T>
float sum_of_squares(const T* x, int64_t width) {
  vf even = {}, odd = {};
  int64_t i = 0;
  for (; i + 2 * kLanes <= width; i += 2 * kLanes) {
    const vf a = load(x + i), b = load(x + i + kLanes);
    even += a * a;
    odd += b * b;
  }
  for_lanes(width - i, [&](int64_t j, auto lanes) {
    const vf a = lanes.get(x + i + j);
    even += a * a;
  });
  return sum_of(even + odd);
}

template <typename T>
void add(const T* x, T* residual, int64_t width) {
  for_lanes(width, [&](int64_t i, auto lanes) {
    lanes.put(residual + i, lanes.get(residual + i) + lanes.get(x + i));
  });
}

template <typename T>
void add_rms_norm(const NormArgs* a, Team* team) {
  int64_t begin, end;
  team_range(team, a->rows, 1, &begin, &end);
  const T* weight = static_cast<const T*>(a->weight);
  for (int64_t row = begin; row < end; row++) {
    T* residual = static_cast<T*>(a->residual) + row * a->residual_stride;
    if (a->x) add(static_cast<const T*>(a->x) + row * a->x_stride, residual, a->width);
    const float mean = sum_of_squares(residual, a->width) / a->width;
    const vf scale = splat(1.0f / sqrtf(mean + a->eps));
    T* out = static_cast<T*>(a->out) + row * a->width;
    for_lanes(a->width, [&](int64_t i, auto lanes) {
      lanes.put(out + i, lanes.get(residual + i) * scale * lanes.get(weight + i));
    });
  }
}

struct RotationArgs {
  const int64_t* positions;
  const float* frequencies;  // [half]
  void* cos;                 // [tokens, 2 * half]
  void* sin;                 // the same; the first half negated
  int64_t tokens, half;
  float scale;
};

inline void put(float* p, float x) { *p = x; }
inline void put(Bf16* p, float x) { store_part(p, splat(x), 1); }

template <typename T>
void rotation(const RotationArgs* a, Team* team) {
  int64_t begin, end;
  team_range(team, a->tokens, 1, &begin, &end);
  for (int64_t token = begin; token < end; token++) {
    T* cos = static_cast<T*>(a->cos) + token * 2 * a->half;
    T* sin = static_cast<T*>(a->sin) + token * 2 * a->half;
    for (int64_t i = 0; i < a->half; i++) {
      const float angle = static_cast<float>(a->positions[token]) * a->frequencies[i];
      const float c = cosf(angle) * a->scale, s = sinf(angle) * a->scale;
      put(cos + i, c);
      put(cos + a->half + i, c);
      put(sin + i, -s);
      put(sin + a->half + i, s);
    }
  }
}

struct RotaryArgs {
  void* x;  // [tokens, heads, 2 * half], rotated in place; heads are dense within a token
  const void* cos;
  const void* sin;
  const void* weight;  // [heads, 2 * half] of the norm of each head before; null: no norm
  int64_t tokens, heads, half, stride;
  float eps;
};

template <typename T>
void norm_head(T* x, const T* weight, int64_t width, float eps) {
  const vf scale = splat(1.0f / sqrtf(sum_of_squares(x, width) / width + eps));
  for_lanes(width, [&](int64_t i, auto lanes) {
    lanes.put(x + i, lanes.get(x + i) * scale * lanes.get(weight + i));
  });
}

template <typename T>
void rotary(const RotaryArgs* a, Team* team) {
  int64_t begin, end;
  team_range(team, a->tokens, 1, &begin, &end);
  const int64_t half = a->half;
  for (int64_t token = begin; token < end; token++) {
    const T* cos = static_cast<const T*>(a->cos) + token * 2 * half;
    const T* sin = static_cast<const T*>(a->sin) + token * 2 * half;
    for (int64_t head = 0; head < a->heads; head++) {
      T* first = static_cast<T*>(a->x) + token * a->stride + head * 2 * half;
      T* second = first + half;
      if (a->weight) {
        const T* weight = static_cast<const T*>(a->weight) + head * 2 * half;
        norm_head(first, weight, 2 * half, a->eps);
      }
      for_lanes(half, [&](int64_t i, auto lanes) {
        const vf u = lanes.get(first + i), v = lanes.get(second + i);
        lanes.put(first + i, u * lanes.get(cos + i) + v * lanes.get(sin + i));
        lanes.put(second + i, v * lanes.get(cos + half + i) + u * lanes.get(sin + half + i));
      });
    }
  }
}

struct SiluArgs {
  const void* gate_up;  // [rows, 2 * width], gate first
  void* out;            // [rows, width]
  int64_t rows, width, stride;
};

template <typename T>
void silu_and_mul(const SiluArgs* a, Team* team) {
  int64_t begin, end;
  team_range(team, a->rows, 1, &begin, &end);
  for (int64_t row = begin; row < end; row++) {
    const T* gate = static_cast<const T*>(a->gate_up) + row * a->stride;
    const T* up = gate + a->width;
    T* out = static_cast<T*>(a->out) + row * a->width;
    for_lanes(a->width, [&](int64_t i, auto lanes) {
      lanes.put(out + i, silu(lanes.get(gate + i)) * lanes.get(up + i));
    });
  }
}

}  // namespace

KERNELS(add_rms_norm, NormArgs)
KERNELS(rotation, RotationArgs)
KERNELS(rotary, RotaryArgs)
KERNELS(silu_and_mul, SiluArgs)
