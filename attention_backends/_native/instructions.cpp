// An instruction of each kind that the kernels of a set are compiled to, to be run once where it may do
// harm to nobody: a virtual CPU may list what it does not have.
#include "stepgraph_kernel.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

extern "C" STEPGRAPH_EXPORT int stepgraph_instructions(void) {
  int done = 0;
#if defined(__AVX2__)
  __m256 a = _mm256_set1_ps(1.0f);
  __m256i b = _mm256_set1_epi32(1);
  asm volatile("vfmadd231ps %1, %1, %0\n\tvpaddd %2, %2, %2\n\tvcvtph2ps %x2, %1" : "+x"(a), "+x"(a), "+x"(b));
  done++;
#endif
#if defined(__AVX512F__)
  __m512 c = _mm512_set1_ps(1.0f);
  asm volatile(
      "vfmadd231ps %0, %0, %0\n\tvpaddw %0, %0, %0\n\tvpmullq %0, %0, %0\n\tvpaddd %y0, %y0, %y0" : "+v"(c));
  done++;
#endif
#if defined(__AVX512BF16__)
  asm volatile("vdpbf16ps %0, %0, %0\n\tvpdpbusd %0, %0, %0" : "+v"(c));
  done++;
#endif
  return done;
}
