// From a row's scores to its weights, relative to the row's maximum within the chunk.
#pragma once

#include "elements.h"
#include "product.h"

namespace sg {

struct Visible {
  int begin, end;  // of the chunk's keys, those that the row sees
  int padded;      // a multiple of W: weights up to here are written
};

struct Scoring {
  float scale;  // in powers of 2: scale * log2(e)
  float softcap;
};

template <class Kind>
struct WeightStore;

template <>
struct WeightStore<Floats> {
  static constexpr bool kCoarse = false;
  static void zero(float* weights, int begin, int end) { memset(weights + begin, 0, sizeof(float) * (end - begin)); }
  static void put(float* weights, int key, Vec w) { store(weights + key, w); }
};

#if defined(__AVX512BF16__)
template <>
struct WeightStore<Pairs> {
  static constexpr bool kCoarse = true;
  static void zero(float* weights, int begin, int end) { memset((uint16_t*)weights + begin, 0, 2 * (end - begin)); }
  static void put(float* weights, int key, Vec w) { Bfloat16::write((uint16_t*)weights + key, w); }
};
#endif

// Capped scores, in powers of 2.
inline void cap(float* scores, int begin, int end, Scoring scoring) {
  const float log2_e = 1.44269504088896340736f;
  for (int i = begin; i < end; i += W) {
    const Vec x = load(scores + i) * (scoring.scale / (scoring.softcap * log2_e));
    store(scores + i, tanh(x) * (scoring.softcap * log2_e));
  }
}

// weights = 2^(score - maximum), 0 where the row sees no key. `maximum` is in powers of 2; `total` is the sum of
// weights, 0 exactly where there is nothing to see.
template <class Kind>
__attribute__((noinline)) void weigh(float* scores, float* weights, Visible visible, Scoring scoring, float* maximum,
                                     float* total) {
  typedef WeightStore<Kind> Out;
  const float none = -__builtin_inff();
  *maximum = none;
  *total = 0;
  if (visible.begin >= visible.end) return Out::zero(weights, 0, visible.padded);
  const int begin = visible.begin / W * W, end = (visible.end + W - 1) / W * W;
  if (scoring.softcap > 0) {
    cap(scores, begin, end, scoring);
    scoring.scale = 1;
  }
  for (int i = begin; i < visible.begin; i++) scores[i] = none;
  for (int i = visible.end; i < end; i++) scores[i] = none;
  Vec most = splat(none);
  for (int i = begin; i < end; i += W) most = max(load(scores + i), most);
  const float top = largest(most) * scoring.scale;
  Out::zero(weights, 0, begin);
  Out::zero(weights, end, visible.padded);
  Vec totals = {};
  for (int i = begin; i < end; i += W) {
    const Vec w = exp2<Out::kCoarse>(load(scores + i) * scoring.scale - top);
    totals += w;
    Out::put(weights, i, w);
  }
  *maximum = top;
  *total = sum(totals);
}

}  // namespace sg
