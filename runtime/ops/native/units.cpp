// The most that each unit of the CPU can do: chains of one instruction, independent of one another, over
// registers. Operations are counted as a product's: a multiplication and an addition each.
#include "stepgraph_kernel.h"
#include "vec.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace {

constexpr int kChains = 12;

struct UnitArgs {
  int64_t rounds;
  double operations;  // out: done
  float sum;          // out, so that the work is not left out
};

template <typename Vector, typename Function>
inline void run(const void* args, double each, Function step) {
  UnitArgs* a = static_cast<UnitArgs*>(const_cast<void*>(args));
  Vector sums[kChains] = {};
  for (int64_t i = 0; i < a->rounds; i++)
#pragma GCC unroll 16
    for (int j = 0; j < kChains; j++) {
      sums[j] = step(sums[j]);
#if defined(__AVX512F__)
      asm volatile("" : "+v"(sums[j]));  // equal chains are not to become one
#elif defined(__x86_64__)
      asm volatile("" : "+x"(sums[j]));
#endif
    }
  a->operations = a->rounds * kChains * each;
#pragma GCC unroll 16
  for (int j = 0; j < kChains; j++) a->sum += ((vf)sums[j])[0];
}

}  // namespace

extern "C" STEPGRAPH_EXPORT void unit_float(const void* args, Team*) {
  vf x = splat(1e-3f), y = splat(1e-3f);
#if defined(__AVX512F__)
  asm volatile("" : "+v"(x), "+v"(y));
#elif defined(__x86_64__)
  asm volatile("" : "+x"(x), "+x"(y));
#endif
  run<vf>(args, 2 * kLanes, [&](vf sum) { return sum + x * y; });
}

#if defined(__AVX512BF16__)
extern "C" STEPGRAPH_EXPORT void unit_dot(const void* args, Team*) {
  const __m512bh x = (__m512bh)_mm512_set1_epi32(0x3c003c00);
  run<__m512>(args, 4 * kLanes, [&](__m512 sum) { return _mm512_dpbf16_ps(sum, x, x); });
}
#endif

#if defined(__AVX512VNNI__)
extern "C" STEPGRAPH_EXPORT void unit_vnni(const void* args, Team*) {
  const __m512i x = _mm512_set1_epi32(0x01010101);
  run<__m512i>(args, 8 * kLanes, [&](__m512i sum) { return _mm512_dpbusd_epi32(sum, x, x); });
}
#endif
