// The element types of queries, keys and values: reading W of them as floats, and writing floats back.
#pragma once

#include "vec.h"

namespace sg {

struct Float32 {
  typedef float Raw;
  static Vec read(const Raw* p) { return load(p); }
  static void write(Raw* p, Vec v) { store(p, v); }
};

struct Bfloat16 {
  typedef uint16_t Raw;

  static Vec read(const Raw* p) {
#if defined(__AVX512F__)
    return (Vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16);
#elif defined(__AVX2__)
    return (Vec)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16);
#else
    IntVec bits;
    for (int i = 0; i < W; i++) bits[i] = (int32_t)((uint32_t)p[i] << 16);
    return (Vec)bits;
#endif
  }

  static void write(Raw* p, Vec v) {
#if defined(__AVX512BF16__)
    const __m256bh rounded = _mm512_cvtneps_pbh((__m512)v);
    memcpy(p, &rounded, sizeof rounded);
#else
    for (int i = 0; i < W; i++) {
      const float x = v[i];
      uint32_t bits;
      memcpy(&bits, &x, 4);
      p[i] = x != x ? 0x7fc0 : (Raw)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
    }
#endif
  }
};

struct Float16 {
  typedef uint16_t Raw;

  static Vec read(const Raw* p) {
#if defined(__AVX512F__)
    return (Vec)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
#elif defined(__AVX2__)
    return (Vec)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
#else
    Vec v;
    for (int i = 0; i < W; i++) v[i] = widen(p[i]);
    return v;
#endif
  }

  static void write(Raw* p, Vec v) {
#if defined(__AVX512F__)
    _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph((__m512)v, 0));
#elif defined(__AVX2__)
    _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph((__m256)v, 0));
#else
    for (int i = 0; i < W; i++) p[i] = narrow(v[i]);
#endif
  }

 private:
  static float widen(Raw h) {
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, magnitude = h & 0x7fff;
    uint32_t bits = sign | ((magnitude << 13) + (112u << 23));
    float x;
    if (magnitude >= 0x7c00) {  // infinity, NaN
      bits = sign | 0x7f800000u | (magnitude & 0x3ff) << 13;
    } else if (magnitude < 0x400) {  // below the normal range
      x = (float)magnitude * 5.9604644775390625e-8f;
      memcpy(&bits, &x, 4);
      bits |= sign;
    }
    memcpy(&x, &bits, 4);
    return x;
  }

  static Raw narrow(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    const uint32_t sign = (bits >> 16) & 0x8000;
    bits &= 0x7fffffff;
    if (bits > 0x7f800000u) return (Raw)(sign | 0x7e00);
    if (bits >= 0x477ff000u) return (Raw)(sign | 0x7c00);
    if (bits < 0x38800000u) {  // below the normal range: adding 0.5 leaves the rounded steps in the last bits
      float magnitude;
      memcpy(&magnitude, &bits, 4);
      magnitude += 0.5f;
      memcpy(&bits, &magnitude, 4);
      return (Raw)(sign | (bits - 0x3f000000u));
    }
    return (Raw)(sign | ((bits - (112u << 23) + 0xfff + ((bits >> 13) & 1)) >> 13));
  }
};

}  // namespace sg
