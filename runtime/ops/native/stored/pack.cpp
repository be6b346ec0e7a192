// Bringing a stored matrix of one kind into panels, and back into plain rows.
#include "../embedding.h"
#include "../packed_rows.h"
#include "panels.h"
#include "stepgraph_kernel.h"

namespace {

inline void put_half(uint8_t* to, uint16_t half) { memcpy(to, &half, 2); }

void put_unit(const Unit& from, uint8_t* to, int64_t output) {
  put_half(to + 2 * output, from.scale);
  if (kHasMin) put_half(to + 2 * (kPanel + output), from.min);
  for (int64_t b = 0; b < kUnitBlocks; b++) {
    uint8_t* block = to + kHeadBytes + b * kPackedBlock;
#pragma GCC unroll 32
    for (int64_t i = 0; i < kBlock; i++) put_code(block, i, output, from.codes[b * kBlock + i]);
    if constexpr (Kind::kIsSuper)
      for (int64_t sub = 0; sub < kSubs; sub++) {
        uint8_t* small = block + kCodeBytes + sub * kPanel + output;
        *small = static_cast<uint8_t>(from.scales[b * kSubs + sub]);
        if (kHasMin) small[kSubBytes] = static_cast<uint8_t>(from.mins[b * kSubs + sub]);
      }
  }
}

}  // namespace

// `plain` is [n_out, units of n_in * kBytes], as the file has it; `packed` is zeroed.
extern "C" STEPGRAPH_EXPORT void NAMED(pack, )(const void* args, Team* team) {
  const PackArgs* a = static_cast<const PackArgs*>(args);
  const int64_t units = a->n_in / Kind::kInputs;
  for (int64_t panel; (panel = team_next(team)) < panels_of(a);)
    for (int64_t place = 0; place < kPanel; place++) {
      const int64_t row = plain_row(a, panel, place);
      if (row < 0) continue;
      const uint8_t* from = static_cast<const uint8_t*>(a->plain) + row * units * Kind::kBytes;
      uint8_t* to = static_cast<uint8_t*>(a->packed) + panel * units * kUnitBytes;
      for (int64_t u = 0; u < units; u++, from += Kind::kBytes, to += kUnitBytes) {
        Unit unit;
        Kind::read(from, &unit);
        put_unit(unit, to, place);
      }
    }
}

extern "C" STEPGRAPH_EXPORT void NAMED(unpack, )(const void* args, Team* team) {
  const PackArgs* a = static_cast<const PackArgs*>(args);
  int64_t begin, end;
  team_range(team, a->n_out, kPanel, &begin, &end);
  for (int64_t row = begin; row < end; row++)
    unpack_stored_row(static_cast<const uint8_t*>(a->packed), packed_row(a, row), a->n_in,
                      static_cast<Bf16*>(a->plain) + row * a->n_in);
}

extern "C" STEPGRAPH_EXPORT void NAMED(embedding_packed, )(const void* args, Team* team) {
  const EmbeddingArgs* a = static_cast<const EmbeddingArgs*>(args);
  int64_t begin, end;
  team_range(team, a->tokens, 1, &begin, &end);
  for (int64_t token = begin; token < end; token++)
    unpack_stored_row(static_cast<const uint8_t*>(a->table), id_of(a, token), a->n_in,
                      static_cast<Bf16*>(a->out) + token * a->n_in);
}

// Inputs and bytes of a stored unit, and bytes of it in a panel.
extern "C" STEPGRAPH_EXPORT const int64_t stored_sizes[3] = {Kind::kInputs, Kind::kBytes, kUnitBytes};
