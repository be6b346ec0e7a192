// Vectors of float lanes as wide as the instruction set gives, and loads and stores of the element
// types. Built on the compiler's vector extensions, so one text serves every instruction set.
#ifndef STEPGRAPH_OPS_VEC_H
#define STEPGRAPH_OPS_VEC_H

#include <stdint.h>
#include <string.h>

namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float vf __attribute__((vector_size(kLanes * 4)));
typedef int32_t vi __attribute__((vector_size(kLanes * 4)));
typedef uint32_t vu __attribute__((vector_size(kLanes * 4)));
typedef uint16_t vh __attribute__((vector_size(kLanes * 2)));

struct Bf16 {
  uint16_t bits;
};

// x - 0 is x for every x, so that this is one broadcast; 0 + x is not.
inline vf splat(float x) { return x - vf{}; }

template <typename Vector, typename Pointer>
inline Vector load_bits(const Pointer* p) {
  Vector v;
  memcpy(&v, p, sizeof v);
  return v;
}

inline vf load(const float* p) { return load_bits<vf>(p); }
inline vf load(const Bf16* p) {
  return (vf)(__builtin_convertvector(load_bits<vh>(p), vu) << 16);
}

// Round to nearest, ties to even; a NaN stays one.
inline vh to_bf16(vf x) {
  const vu bits = (vu)x;
  const vu rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const vu quiet = (bits >> 16) | 0x40u;
  return __builtin_convertvector(x == x ? rounded : quiet, vh);
}

inline void store(float* p, vf x) { memcpy(p, &x, sizeof x); }
inline void store(Bf16* p, vf x) {
  const vh bits = to_bf16(x);
  memcpy(p, &bits, sizeof bits);
}

// The first `count` < kLanes elements; the other lanes are zero.
template <typename T>
inline vf load_part(const T* p, int64_t count) {
  T elements[kLanes] = {};
  memcpy(elements, p, count * sizeof(T));
  return load(elements);
}

template <typename T>
inline void store_part(T* p, vf x, int64_t count) {
  T elements[kLanes];
  store(elements, x);
  memcpy(p, elements, count * sizeof(T));
}

// fn(i, load, store) over i = 0, kLanes, .. n; the last one with the partial load and store.
struct Whole {
  template <typename T>
  vf get(const T* p) const { return load(p); }
  template <typename T>
  void put(T* p, vf x) const { store(p, x); }
};
struct Part {
  int64_t count;
  template <typename T>
  vf get(const T* p) const { return load_part(p, count); }
  template <typename T>
  void put(T* p, vf x) const { store_part(p, x, count); }
};

template <typename Function>
inline void for_lanes(int64_t n, Function fn) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) fn(i, Whole{});
  if (i < n) fn(i, Part{n - i});
}

inline float sum_of(vf x) {
  float sum = 0;
  for (int lane = 0; lane < kLanes; lane++) sum += x[lane];
  return sum;
}

// e^x within 2 units in the last place for -87 <= x <= 88; beyond, the value at the end.
inline vf exp_of(vf x) {
  x = x < splat(-87.0f) ? splat(-87.0f) : x;
  x = x > splat(88.0f) ? splat(88.0f) : x;
  const vf magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const vf shifted = x * 1.44269504f + magic;
  const vf n = shifted - magic;
  const vf r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  vf p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const vi exponent = ((vi)shifted - (vi)magic) << 23;
  return (vf)((vi)p + exponent);
}

// NaN stays NaN: the comparisons of exp_of keep it.
inline vf silu(vf x) { return x / (1.0f + exp_of(-x)); }

}  // namespace

// The kernel `name`, a template over the type of its rows, for float32 and bfloat16.
#define KERNELS(name, Args)                                                  \
  extern "C" STEPGRAPH_EXPORT void name##_float32(const void* a, Team* t) {  \
    name<float>(static_cast<const Args*>(a), t);                             \
  }                                                                          \
  extern "C" STEPGRAPH_EXPORT void name##_bfloat16(const void* a, Team* t) { \
    name<Bf16>(static_cast<const Args*>(a), t);                              \
  }

#endif
