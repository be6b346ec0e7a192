// From rows of scores to their weights, relative to each row's maximum within the chunk.
#pragma once

#include "pack.h"

namespace sg {

constexpr int kTogether = W == 16 ? 4 : 2;  // rows, so that one's latencies hide another's

struct Scoring {
  float scale;  // in powers of 2: scale * log2(e); above 0
  float softcap;
};

// How weights are written, in place of the scores they come from.
struct FloatWeights {
  typedef float Element;
  static void put(float* weights, int key, Vec w) { store(weights + key, w); }
};

struct Bfloat16Weights {
  typedef uint16_t Element;
  static void put(float* weights, int key, Vec w) { Bfloat16::write((uint16_t*)weights + key, w); }
};

// Capped scores, in powers of 2.
inline void cap(float* scores, Span span, Scoring scoring) {
  const float log2_e = 1.44269504088896340736f;
  for (int i = span.begin; i < span.end; i += W) {
    const Vec x = load(scores + i) * (scoring.scale / (scoring.softcap * log2_e));
    store(scores + i, tanh(x) * (scoring.softcap * log2_e));
  }
}

// -inf in the keys of `span` that are not visible.
inline void hide(float* scores, Span span, Span visible) {
  auto hide_at = [&](int i) {
    store(scores + i, only_lanes(load(scores + i), visible.begin - i, visible.end - i, -__builtin_inff()));
  };
  for (int i = span.begin; i < span.end && i < visible.begin; i += W) hide_at(i);
  const int last = visible.end / W * W;
  for (int i = last > span.begin ? last : span.begin; i < span.end; i += W) hide_at(i);
}

// weights = 2^(score - maximum) for the keys of `span`, whose ends are multiples of W; 0 where a row sees no key.
// Rows are `stride` floats apart. `maxima` are in powers of 2; `totals` are the sums of the weights, 0 exactly where
// there is nothing to see.
template <class Weights, bool Coarse, int Rows>
inline void weigh_together(float* scores, int stride, Span span, const Span* visible, Scoring scoring, float* maxima,
                           float* totals) {
  const float none = -__builtin_inff();
  for (int row = 0; row < Rows; row++) {
    if (scoring.softcap > 0) cap(scores + row * stride, span, scoring);
    hide(scores + row * stride, span, visible[row]);
  }
  const float scale = scoring.softcap > 0 ? 1 : scoring.scale;
  Vec most[Rows], top[Rows], sums[Rows] = {};
  for (int row = 0; row < Rows; row++) most[row] = splat(none);
  for (int i = span.begin; i < span.end; i += W) {
    for (int row = 0; row < Rows; row++) most[row] = max(load(scores + row * stride + i), most[row]);
  }
  for (int row = 0; row < Rows; row++) {
    maxima[row] = largest(most[row]) * scale;
    top[row] = splat(maxima[row] == none ? 0 : maxima[row]);
  }
  for (int i = span.begin; i < span.end; i += W) {
    for (int row = 0; row < Rows; row++) {
      const Vec w = exp2<Coarse>(load(scores + row * stride + i) * scale - top[row]);
      sums[row] += w;
      Weights::put(scores + row * stride, i, w);
    }
  }
  for (int row = 0; row < Rows; row++) totals[row] = sum(sums[row]);
}

template <class Weights, bool Coarse>
__attribute__((noinline)) void weigh(float* scores, int stride, int num_rows, Span span, const Span* visible,
                                     Scoring scoring, float* maxima, float* totals) {
  int row = 0;
  for (; row + kTogether <= num_rows; row += kTogether) {
    weigh_together<Weights, Coarse, kTogether>(scores + (int64_t)row * stride, stride, span, visible + row, scoring,
                                               maxima + row, totals + row);
  }
  for (; row < num_rows; row++) {
    weigh_together<Weights, Coarse, 1>(scores + (int64_t)row * stride, stride, span, visible + row, scoring,
                                       maxima + row, totals + row);
  }
}

}  // namespace sg
