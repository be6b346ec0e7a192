// What Python hands to the planner and to the kernel. Each struct has its ctypes twin in attention_args.py.
#pragma once

#include <stdint.h>

namespace sg {

enum Dtype : int32_t { kFloat32 = 0, kBfloat16 = 1, kFloat16 = 2 };

constexpr int kChunk = 256;     // keys whose softmax is taken at once; sums over chunks are in order
constexpr int kTileRows = 256;  // at most: query rows (token x query head of one K/V head) that share packed keys

struct Item {
  int32_t request, kv_head;
  int32_t token, num_tokens;    // rows of q
  int32_t position;             // of the first token
  int32_t chunk, end_chunk;
  int32_t partial;              // first row of partial results, -1 where the item is whole
};

struct Merge {
  int32_t kv_head, token, num_tokens, partial, num_chunks;
};

struct Plan {
  int32_t num_items, num_merges, num_tokens;
  int32_t max_items, max_merges, max_partial_rows;
  Item* items;
  Merge* merges;
};

struct PlanArgs {
  Plan* plan;
  const int32_t* query_start_loc;
  const int32_t* seq_lens;
  int32_t num_reqs, num_kv_heads, group, window, num_threads;
};

struct AttendArgs {
  const Plan* plan;
  const void* q;
  void* out;
  const void* k;
  const void* v;
  const int32_t* block_table;
  float* partials;   // [max_partial_rows, head_dim + 2]
  char* workspace;   // [workspace_threads, workspace_bytes]
  int64_t q_token, q_head, out_token, out_head;  // strides, in elements
  int64_t kv_block, kv_token, kv_head;
  int64_t table_row;
  int64_t workspace_bytes;
  int32_t workspace_threads;
  int32_t out_tokens;  // padded
  int32_t num_q_heads, num_kv_heads, head_dim, block_size;
  int32_t window;  // 0: none
  int32_t dtype, kv_dtype;
  float scale, softcap;
};

}  // namespace sg
