// Moving rows: K and V into the paged cache, embeddings out of their table. Any element type.
#include <string.h>

#include "embedding.h"
#include "stepgraph_kernel.h"
#include "vec.h"

namespace {

// Strides and sizes are bytes.
struct KvArgs {
  const char* source[2];  // K, V: [tokens, heads, dim]
  char* cache[2];         // [blocks, block_size, heads, dim]
  const int64_t* slots;
  int64_t tokens, heads, head_bytes, block_size;
  int64_t source_token[2], source_head[2];
  int64_t block, slot, head;
};

}  // namespace

extern "C" STEPGRAPH_EXPORT void write_kv(const void* args, Team* team) {
  const KvArgs* a = static_cast<const KvArgs*>(args);
  int64_t begin, end;
  team_range(team, a->tokens, 1, &begin, &end);
  for (int64_t token = begin; token < end; token++) {
    const int64_t slot = a->slots[token];
    const int64_t place = slot / a->block_size * a->block + slot % a->block_size * a->slot;
    for (int kind = 0; kind < 2; kind++) {
      const char* source = a->source[kind] + token * a->source_token[kind];
      char* target = a->cache[kind] + place;
      if (a->head == a->head_bytes && a->source_head[kind] == a->head_bytes) {
        memcpy(target, source, a->heads * a->head_bytes);
        continue;
      }
      for (int64_t head = 0; head < a->heads; head++)
        memcpy(target + head * a->head, source + head * a->source_head[kind], a->head_bytes);
    }
  }
}

extern "C" STEPGRAPH_EXPORT void embedding(const void* args, Team* team) {
  const EmbeddingArgs* a = static_cast<const EmbeddingArgs*>(args);
  int64_t begin, end;
  team_range(team, a->tokens, 1, &begin, &end);
  for (int64_t token = begin; token < end; token++)
    memcpy(static_cast<char*>(a->out) + token * a->row_bytes,
           static_cast<const char*>(a->table) + id_of(a, token) * a->row_bytes, a->row_bytes);
}

extern "C" STEPGRAPH_EXPORT void embedding_packed_bfloat16(const void* args, Team* team) {
  const EmbeddingArgs* a = static_cast<const EmbeddingArgs*>(args);
  int64_t begin, end;
  team_range(team, a->tokens, 1, &begin, &end);
  for (int64_t token = begin; token < end; token++)
    unpack_row(static_cast<const uint32_t*>(a->table), id_of(a, token), a->n_in,
               static_cast<uint32_t*>(a->out) + token * a->n_in / 2);
}

extern "C" STEPGRAPH_EXPORT void embedding_packed_int8(const void* args, Team* team) {
  const EmbeddingArgs* a = static_cast<const EmbeddingArgs*>(args);
  int64_t begin, end;
  team_range(team, a->tokens, 1, &begin, &end);
  for (int64_t token = begin; token < end; token++)
    unpack_row_int8(static_cast<const int8_t*>(a->table), a->scales, id_of(a, token), a->n_in,
                    static_cast<Bf16*>(a->out) + token * a->n_in);
}

extern "C" STEPGRAPH_EXPORT void embedding_packed_q8_0(const void* args, Team* team) {
  const EmbeddingArgs* a = static_cast<const EmbeddingArgs*>(args);
  int64_t begin, end;
  team_range(team, a->tokens, 1, &begin, &end);
  for (int64_t token = begin; token < end; token++)
    unpack_row_q8_0(static_cast<const uint8_t*>(a->table), id_of(a, token), a->n_in,
                    static_cast<Bf16*>(a->out) + token * a->n_in);
}
