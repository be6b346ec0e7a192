// Arguments of reading rows out of a table.
#ifndef STEPGRAPH_OPS_EMBEDDING_H
#define STEPGRAPH_OPS_EMBEDDING_H

#include "packing.h"

namespace {

struct EmbeddingArgs {
  const void* ids;
  const void* table;  // [vocab, width], or packed
  const float* scales;
  void* out;  // [tokens, width]
  int64_t tokens, row_bytes, n_in;
  int32_t ids_are_64_bit;
};

inline int64_t id_of(const EmbeddingArgs* a, int64_t token) {
  return a->ids_are_64_bit ? static_cast<const int64_t*>(a->ids)[token]
                           : static_cast<const int32_t*>(a->ids)[token];
}

}  // namespace

#endif
