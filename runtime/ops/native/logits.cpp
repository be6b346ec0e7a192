// The largest scores of rows of logits. A NaN counts as larger than any number; of equal scores the
// lowest id comes first.
#include <math.h>

#include "stepgraph_kernel.h"
#include "vec.h"

namespace {

struct Best {
  float score;
  int32_t id;
};

inline bool is_better(Best a, Best b) {
  const bool a_nan = a.score != a.score, b_nan = b.score != b.score;
  if (a_nan != b_nan) return a_nan;
  if (a_nan || a.score == b.score) return a.id < b.id;
  return a.score > b.score;
}

struct ArgmaxArgs {
  const void* logits;  // [rows, width]
  int64_t* ids;        // [rows]
  float* scores;       // [rows]
  void* scratch;       // [threads, rows] Best
  int64_t rows, width, stride;
};

template <typename T>
Best best_of(const T* logits, int64_t begin, int64_t end) {
  vf best = splat(-INFINITY);
  vi ids = {}, now = {};
  for (int lane = 0; lane < kLanes; lane++) ids[lane] = now[lane] = begin + lane;
  vi has_nan = {};
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) {
    const vf x = load(logits + i);
    const vi larger = x > best;
    best = larger ? x : best;
    ids = larger ? now : ids;
    has_nan |= x != x;
    now += kLanes;
  }
  Best result = {-INFINITY, static_cast<int32_t>(begin)};
  int any_nan = 0;
  for (int lane = 0; lane < kLanes; lane++) {
    any_nan |= has_nan[lane];
    const Best lane_best = {best[lane], ids[lane]};
    if (ids[lane] < end && is_better(lane_best, result)) result = lane_best;
  }
  auto scan = [&](int64_t from) {
    for (int64_t id = from; id < end; id++) {
      const Best one = {load_part(logits + id, 1)[0], static_cast<int32_t>(id)};
      if (is_better(one, result)) result = one;
    }
  };
  scan(any_nan ? begin : i);
  return result;
}

template <typename T>
void argmax(const ArgmaxArgs* a, Team* team) {
  int64_t begin, end;
  team_range(team, a->width, 64, &begin, &end);
  Best* all = static_cast<Best*>(a->scratch);
  const T* logits = static_cast<const T*>(a->logits);
  for (int64_t row = 0; row < a->rows; row++)
    all[team->thread * a->rows + row] =
        begin < end ? best_of(logits + row * a->stride, begin, end) : Best{-INFINITY, INT32_MAX};
  team_barrier(team);
  team_range(team, a->rows, 1, &begin, &end);
  for (int64_t row = begin; row < end; row++) {
    Best best = all[row];
    for (int thread = 1; thread < team->num_threads; thread++) {
      const Best other = all[thread * a->rows + row];
      if (is_better(other, best)) best = other;
    }
    a->ids[row] = best.id;
    a->scores[row] = best.score;
  }
}

struct TopKArgs {
  const void* logits;  // [rows, width]
  int64_t* ids;        // [rows, count], best first
  float* scores;
  void* scratch;  // [rows, count] Best
  int64_t rows, width, stride, count;
};

// A heap whose top is the worst of the best so far.
inline void sift_down(Best* heap, int64_t count, Best item) {
  int64_t at = 0;
  for (int64_t child; (child = 2 * at + 1) < count; at = child) {
    if (child + 1 < count && is_better(heap[child], heap[child + 1])) child++;
    if (!is_better(item, heap[child])) break;
    heap[at] = heap[child];
  }
  heap[at] = item;
}

template <typename T>
void top_of_row(const T* logits, int64_t width, Best* heap, int64_t count) {
  const Best none = {-INFINITY, INT32_MAX};
  for (int64_t i = 0; i < count; i++) heap[i] = none;
  for_lanes(width, [&](int64_t i, auto lanes) {
    const vf x = lanes.get(logits + i);
    const vi may_enter = !(x < splat(heap[0].score)) | (x != x);
    int any = 0;
    for (int lane = 0; lane < kLanes; lane++) any |= may_enter[lane];
    if (!any) return;
    for (int lane = 0; lane < kLanes && i + lane < width; lane++) {
      const Best one = {x[lane], static_cast<int32_t>(i + lane)};
      if (is_better(one, heap[0])) sift_down(heap, count, one);
    }
  });
}

template <typename T>
void top_k(const TopKArgs* a, Team* team) {
  for (int64_t row; (row = team_next(team)) < a->rows;) {
    Best* heap = static_cast<Best*>(a->scratch) + row * a->count;
    top_of_row(static_cast<const T*>(a->logits) + row * a->stride, a->width, heap, a->count);
    for (int64_t left = a->count; left > 0; left--) {
      a->ids[row * a->count + left - 1] = heap[0].id;
      a->scores[row * a->count + left - 1] = heap[0].score;
      sift_down(heap, left - 1, heap[left - 1]);
    }
  }
}

}  // namespace

KERNELS(argmax, ArgmaxArgs)
KERNELS(top_k, TopKArgs)
