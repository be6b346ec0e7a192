// The ways to score a chunk's keys and to sum its values: in packed floats, straight from the cache, or in tiles.
//
// A path says how many rows it takes at once (kRows), to what multiple keys are padded (kKeys), and how weights are
// written; it packs a chunk once, and is then asked for the scores and the sums of some rows at a time.
#pragma once

#include "few_rows.h"
#include "softmax.h"
#include "tiles.h"
#include "workspace.h"

namespace sg {

// Call `function` with the element type that `dtype` names.
template <class Function>
void with_type(int32_t dtype, Function function) {
  switch (dtype) {
    case kFloat32: return function(Float32());
    case kBfloat16: return function(Bfloat16());
    case kFloat16: return function(Float16());
  }
}

// Where the keys and values of a chunk are, and how many.
struct Chunk {
  const void* const* k_rows;
  const void* const* v_rows;
  Span span;  // begins at a panel, and ends at a multiple of the path's kKeys
};

struct InFloats {
  typedef FloatWeights Weights;
  static constexpr int kRows = 4 * kBlockRows;
  static constexpr int kKeys = W;

  static int depth(int head_dim) { return head_dim; }

  static void pack_row(const AttendArgs& args, const void* q, float* out) {
    with_type(args.dtype, [&](auto type) {
      typedef decltype(type) Type;
      for (int d = 0; d < args.head_dim; d += W) store(out + d, Type::read((const typename Type::Raw*)q + d));
    });
  }

  static void pack(const AttendArgs& args, const Chunk& chunk, const Workspace& space) {
    with_type(args.kv_dtype, [&](auto type) {
      pack_keys<decltype(type)>(chunk.k_rows, chunk.span, args.head_dim, space.keys);
      pack_values<decltype(type)>(chunk.v_rows, chunk.span, args.head_dim, space.values);
    });
  }

  static void score(int dim, const Chunk&, const Workspace& space, const float* q, int rows, Span span) {
    const Packed keys = {space.keys, kPanel, (int64_t)dim * kPanel};
    product(q, dim, keys.from(span.begin), space.scores + span.begin, kChunk, rows, span.end - span.begin, dim);
  }

  static void sum_values(int dim, const Chunk&, const Workspace& space, int rows, Span span) {
    const Packed values = {space.values + (int64_t)span.begin * dim, dim, 0};
    product(space.scores + span.begin, kChunk, values, space.part, dim, rows, dim, span.end - span.begin);
  }
};

#if defined(__AVX512F__)
struct FromCache : InFloats {
  static constexpr int kRows = kFewRows;
  static constexpr int kKeys = 16;

  static bool serves(const AttendArgs& args, int rows) {
    return rows <= kFewRows && args.kv_dtype == kBfloat16 && args.head_dim % 32 == 0;
  }
  static void pack(const AttendArgs&, const Chunk&, const Workspace&) {}
  static void score(int dim, const Chunk& chunk, const Workspace& space, const float* q, int rows, Span span) {
    scores_of_few(rows, q, dim, chunk.k_rows, span, space.scores, kChunk);
  }
  static void sum_values(int dim, const Chunk& chunk, const Workspace& space, int rows, Span span) {
    values_of_few(rows, space.scores, kChunk, chunk.v_rows, span, dim, space.part);
  }
};
#endif

#if defined(STEPGRAPH_HAS_TILES)
// Queries, keys and values in bf16.
struct InTiles {
  typedef Bfloat16Weights Weights;
  static constexpr int kRows = 2 * kTile;
  static constexpr int kKeys = 2 * kTile;

  static int depth(int head_dim) { return round_up(head_dim / 2, kTile); }

  static void pack_row(const AttendArgs& args, const void* q, float* out) {
    const int words = args.head_dim / 2;
    memcpy(out, q, 4 * words);
    memset(out + words, 0, 4 * (depth(args.head_dim) - words));
  }

  static void pack(const AttendArgs& args, const Chunk& chunk, const Workspace& space) {
    pack_key_pairs(chunk.k_rows, chunk.span, args.head_dim, depth(args.head_dim), space.keys);
    pack_value_pairs(chunk.v_rows, chunk.span, args.head_dim, space.values);
  }

  static void score(int dim, const Chunk&, const Workspace& space, const float* q, int rows, Span span) {
    const Packed keys = {space.keys, kPanel, (int64_t)depth(dim) * kPanel};
    tile_product(q, depth(dim), keys.from(span.begin), space.scores + span.begin, kChunk, rows, span.end - span.begin,
                 depth(dim));
  }

  static void sum_values(int dim, const Chunk&, const Workspace& space, int rows, Span span) {
    const Packed values = {space.values + (int64_t)span.begin / 2 * dim, dim, 0};
    tile_product(space.scores + span.begin / 2, kChunk, values, space.part, dim, rows, dim,
                 (span.end - span.begin) / 2);
  }
};
#endif

}  // namespace sg
