// A thread's arrays; `stepgraph_attention_workspace` says how many bytes they take.
#pragma once

#include "args.h"
#include "pack.h"

namespace sg {

constexpr int kMaxRows = 32;  // whose scores are in L1 together, over all paths

inline int round_up(int n, int multiple) { return (n + multiple - 1) / multiple * multiple; }

struct Workspace {
  const void** k_rows;  // [2 * kChunk + kAhead], where each key of a chunk is, then each value, then the next keys
  float* rows;          // [kTileRows, depth]
  float* keys;          // panels of [depth, kPanel], kChunk keys
  float* values;        // [kChunk / keys of a word, head_dim]
  float* scores;        // [kMaxRows, kChunk], then the weights in their place
  float* part;          // [kMaxRows, head_dim], of one chunk
  float* sums;          // [kTileRows, head_dim], over chunks
  float* state;         // [kTileRows, 2]: maximum and sum of weights

  static int64_t num_bytes(int head_dim) { return Workspace().lay_out(nullptr, head_dim); }

  // Bytes that are used, or would be where `memory` is null. Sized for floats, which take the most.
  int64_t lay_out(char* memory, int head_dim) {
    const int depth = round_up(head_dim, 32);
    int64_t used = 0;
    auto take = [&](int64_t count, int64_t size) {
      char* array = memory == nullptr ? nullptr : memory + used;
      used += (count * size + 63) / 64 * 64 + 64;  // apart, so that arrays of one power of 2 do not share cache sets
      return array;
    };
    k_rows = (const void**)take(2 * kChunk + kAhead, sizeof(void*));
    rows = (float*)take((int64_t)kTileRows * depth, 4);
    keys = (float*)take((int64_t)kChunk * depth, 4);
    values = (float*)take((int64_t)kChunk * head_dim, 4);
    scores = (float*)take((int64_t)kMaxRows * kChunk, 4);
    part = (float*)take((int64_t)kMaxRows * head_dim, 4);
    sums = (float*)take((int64_t)kTileRows * head_dim, 4);
    state = (float*)take((int64_t)kTileRows * 2, 4);
    return used;
  }
};

}  // namespace sg
