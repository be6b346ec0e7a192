// Vectors of W floats, written once for every instruction set: GCC's vector types where they suffice, intrinsics
// where they do not.
#pragma once

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace sg {

#if defined(__AVX512F__)
constexpr int W = 16;
constexpr int kBlockVecs = 4;  // columns of a register block of a product, in vectors
#elif defined(__AVX2__)
constexpr int W = 8;
constexpr int kBlockVecs = 2;
#else
constexpr int W = 4;
constexpr int kBlockVecs = 2;
#endif
constexpr int kBlockRows = 6;

typedef float Vec __attribute__((vector_size(4 * W)));
typedef int32_t IntVec __attribute__((vector_size(4 * W)));

inline Vec splat(float x) { return x - Vec{}; }

inline Vec load(const float* p) {
  Vec v;
  memcpy(&v, p, sizeof v);
  return v;
}

inline void store(float* p, Vec v) { memcpy(p, &v, sizeof v); }

// NaN is passed over, in both operands' favour of the other.
inline Vec max(Vec a, Vec b) {
#if defined(__AVX512F__)
  return (Vec)_mm512_max_ps((__m512)a, (__m512)b);
#else
  return a > b ? a : b;
#endif
}

inline float sum(Vec v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)v);
#else
  float total = 0;
  for (int i = 0; i < W; i++) total += v[i];
  return total;
#endif
}

inline float largest(Vec v) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps((__m512)v);
#else
  float most = v[0];
  for (int i = 1; i < W; i++) most = v[i] > most ? v[i] : most;
  return most;
#endif
}

// 2^x, 0 below -126; relative error 2e-7, or 8e-5 where `Coarse` (bf16 has 2e-3). NaN stays NaN. x <= 127.
template <bool Coarse>
inline Vec exp2(Vec x) {
#if defined(__AVX512F__)
  const Vec whole = (Vec)_mm512_roundscale_ps((__m512)x, 8);
#else
  const Vec magic = splat(12582912.0f);  // 1.5 * 2^23: its last bits count ones
  const Vec shifted = x + magic;
  const Vec whole = shifted - magic;
#endif
  const Vec r = x - whole;  // -0.5 .. 0.5
  Vec p;
  if (Coarse) {
    p = splat(0.05517157f);
    p = p * r + 0.24261111f;
    p = p * r + 0.69326103f;
    p = p * r + 0.99992806f;
  } else {
    p = splat(0.0013276461f);
    p = p * r + 0.0096755410f;
    p = p * r + 0.055507135f;
    p = p * r + 0.24022120f;
    p = p * r + 0.69314694f;
    p = p * r + 1.0000001f;
  }
#if defined(__AVX512F__)
  const __mmask16 big = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
  return (Vec)_mm512_maskz_scalef_ps(big, (__m512)p, (__m512)whole);
#else
  const IntVec bits = (((IntVec)shifted) + 127) << 23;
  const Vec result = p * (Vec)bits;
  return x < -126.0f ? Vec{} : result;
#endif
}

inline IntVec lane_numbers() {
  IntVec lanes;
  for (int i = 0; i < W; i++) lanes[i] = i;
  return lanes;
}

// v in lanes [begin, end), `other` in all others; begin and end may lie outside of the vector.
inline Vec only_lanes(Vec v, int begin, int end, float other) {
  const IntVec lanes = lane_numbers();
  return ((lanes >= begin) & (lanes < end)) ? v : splat(other);
}

inline float exp2_one(float x) { return exp2<false>(splat(x))[0]; }

inline Vec tanh(Vec x) {
  const Vec magnitude = x < 0.0f ? -x : x;
  const Vec e = exp2<false>(magnitude * -2.885390082f);
  const Vec t = (1.0f - e) / (1.0f + e);
  return x < 0.0f ? -t : t;
}

}  // namespace sg
