// The packed form of stored weights of one kind, STEPGRAPH_KIND.
//
// A panel holds 32 outputs. Its units follow one another; a unit begins with the float16 scales (and mins)
// of its outputs. Then, for each 32 inputs: the planes of codes, and of super-blocks the small integers
// that scale them, [32 / kShared][32 outputs] int8, scales and then mins.
//
// A line of 64 bytes in the plane of 4 bits is 4 inputs: byte 4 * output + input, outputs 0 to 15 in the
// low halves and 16 to 31 in the high ones. In the plane of 2 bits a line is 8 inputs, in that of 1 bit 16:
// the lower bits of a byte are the first 4 inputs, of which the lower are outputs 0 to 15.
#ifndef STEPGRAPH_OPS_STORED_PANELS_H
#define STEPGRAPH_OPS_STORED_PANELS_H

#include "../packing.h"
#include "kinds.h"

namespace {

using Kind = STEPGRAPH_KIND;

constexpr int64_t kBlock = 32;  // inputs
constexpr int64_t kGroups = kBlock / 4, kLineBytes = 64;
constexpr bool kHasMin = Kind::kSign != 0;
constexpr int64_t kFourBytes = Kind::kFour >= 0 ? 512 : 0, kTwoBytes = Kind::kTwo >= 0 ? 256 : 0;
constexpr int64_t kOneBytes = Kind::kOne >= 0 ? 128 : 0, kCodeBytes = kFourBytes + kTwoBytes + kOneBytes;
constexpr int64_t kSubs = kBlock / Kind::kShared;  // scales of an output in a block of a super-block
constexpr int64_t kSubBytes = Kind::kIsSuper ? kSubs * kPanel : 0;
constexpr int64_t kPackedBlock = kCodeBytes + kSubBytes * (kHasMin ? 2 : 1);
constexpr int64_t kHeadBytes = 2 * kPanel * (kHasMin ? 2 : 1);
constexpr int64_t kUnitBlocks = Kind::kInputs / kBlock;
constexpr int64_t kUnitBytes = kHeadBytes + kUnitBlocks * kPackedBlock;

// Where the codes of 4 inputs (a group of a block) are in a plane of `bits`: line, and lowest bit.
struct Place {
  int64_t line;
  int shift;
};
constexpr Place place_of(int bits, int64_t group, int half) {
  const int64_t groups = 4 / bits;  // of a line
  return {group / groups, static_cast<int>(group % groups * 2 * bits + half * bits)};
}

template <typename Function>
inline void for_planes(const Function& fn) {  // fn(bits, lowest bit of a code, offset in a block)
  if (Kind::kFour >= 0) fn(4, Kind::kFour, int64_t{0});
  if (Kind::kTwo >= 0) fn(2, Kind::kTwo, kFourBytes);
  if (Kind::kOne >= 0) fn(1, Kind::kOne, kFourBytes + kTwoBytes);
}

inline void put_code(uint8_t* block, int64_t input, int64_t output, int code) {
  const int64_t byte = output % 16 * 4 + input % 4;
  for_planes([&](int bits, int lowest, int64_t offset) {
    const Place place = place_of(bits, input / 4, output / 16);
    const int part = code >> lowest & ((1 << bits) - 1);
    block[offset + place.line * kLineBytes + byte] |= part << place.shift;
  });
}

inline int get_code(const uint8_t* block, int64_t input, int64_t output) {
  const int64_t byte = output % 16 * 4 + input % 4;
  int code = 0;
  for_planes([&](int bits, int lowest, int64_t offset) {
    const Place place = place_of(bits, input / 4, output / 16);
    const int part = block[offset + place.line * kLineBytes + byte] >> place.shift & ((1 << bits) - 1);
    code |= part << lowest;
  });
  return code;
}

inline float level_of(int code) {
  if constexpr (Kind::kIsTable) code = Kind::kLevels[code];
  return static_cast<float>(code - Kind::kZero);
}

inline float half_of(const uint8_t* p) {
  uint8_t halves[2 * kLanes] = {p[0], p[1]};
  return load_half(halves)[0];
}

// Weights of one output and the 32 inputs of block `b` of a unit.
inline void unpack_block(const uint8_t* unit, int64_t b, int64_t output, float* values) {
  const uint8_t* block = unit + kHeadBytes + b * kPackedBlock;
  for (int64_t sub = 0; sub < kSubs; sub++) {
    float scale = half_of(unit + 2 * output), min = kHasMin ? half_of(unit + 2 * (kPanel + output)) : 0;
    if constexpr (Kind::kIsSuper) {
      const uint8_t* small = block + kCodeBytes + sub * kPanel + output;
      scale *= static_cast<int8_t>(*small);
      if constexpr (kHasMin) min *= static_cast<int8_t>(small[kSubBytes]);
    }
    for (int64_t i = sub * Kind::kShared; i < (sub + 1) * Kind::kShared; i++)
      values[i] = scale * level_of(get_code(block, i, output)) + Kind::kSign * min;
  }
}

inline void unpack_stored_row(const uint8_t* packed, int64_t output, int64_t n_in, Bf16* row) {
  const int64_t units = n_in / Kind::kInputs;
  const uint8_t* unit = packed + output / kPanel * units * kUnitBytes;
  for (int64_t u = 0; u < units; u++, unit += kUnitBytes)
    for (int64_t b = 0; b < kUnitBlocks; b++, row += kBlock) {
      float values[kBlock];
      unpack_block(unit, b, output % kPanel, values);
      for (int i = 0; i < kBlock; i += kLanes) store(row + i, load(values + i));
    }
}

}  // namespace

// The functions of this kind: NAMED(linear, _vnni) is linear_q4_k_vnni where the kind is q4_k.
#define STEPGRAPH_JOIN(a, b, c) a##_##b##c
#define STEPGRAPH_JOIN_LATER(a, b, c) STEPGRAPH_JOIN(a, b, c)
#define NAMED(name, suffix) STEPGRAPH_JOIN_LATER(name, STEPGRAPH_KIND, suffix)

#endif
