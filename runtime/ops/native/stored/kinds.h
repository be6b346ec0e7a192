// The types of a GGUF file's quantised weights: how a stored unit (a block, or a super-block of K types) is
// read into codes and scales, and of which planes the packed form is made.
//
//   weight = scale * (code - zero), or scale * code + min * sign; of super-blocks, scale and min are
//   float16 numbers of the whole unit times small integers of `kShared` inputs each.
//
// Codes lie in planes of 4, 2 or 1 bit; `kFour`, `kTwo`, `kOne` are the lowest bit that each gives, or -1.
#ifndef STEPGRAPH_OPS_STORED_KINDS_H
#define STEPGRAPH_OPS_STORED_KINDS_H

#include <stdint.h>
#include <string.h>

namespace {

// A stored unit, read.
struct Unit {
  uint8_t codes[256];
  uint16_t scale, min;               // float16
  int8_t scales[16], mins[16];       // of super-blocks
};

struct Plain {
  static constexpr int kInputs = 32, kShared = 32, kFour = 0, kTwo = -1, kOne = -1, kZero = 0, kSign = 0;
  static constexpr bool kIsSuper = false, kIsTable = false;
  // Where codes are places in a table: its levels, raised by 128.
  static constexpr uint8_t kLevels[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                          129, 141, 153, 166, 181, 197, 217, 241};
};

struct Super : Plain {
  static constexpr int kInputs = 256;
  static constexpr bool kIsSuper = true;
};

inline uint16_t half_at(const uint8_t* p) { return static_cast<uint16_t>(p[0] | p[1] << 8); }

// 16 bytes: their low halves are inputs 0 to 15, their high ones 16 to 31.
inline void read_halves(const uint8_t* bytes, uint8_t* codes) {
  for (int i = 0; i < 16; i++) {
    codes[i] = bytes[i] & 15;
    codes[i + 16] = bytes[i] >> 4;
  }
}

inline void read_fifth_bits(const uint8_t* bytes, uint8_t* codes) {
  for (int i = 0; i < 32; i++) codes[i] |= (bytes[i / 8] >> i % 8 & 1) << 4;
}

struct q4_0 : Plain {
  static constexpr int kBytes = 18, kZero = 8;
  static void read(const uint8_t* p, Unit* unit) {
    unit->scale = half_at(p);
    read_halves(p + 2, unit->codes);
  }
};

struct q4_1 : Plain {
  static constexpr int kBytes = 20, kSign = 1;
  static void read(const uint8_t* p, Unit* unit) {
    unit->scale = half_at(p);
    unit->min = half_at(p + 2);
    read_halves(p + 4, unit->codes);
  }
};

struct q5_0 : Plain {
  static constexpr int kBytes = 22, kOne = 4, kZero = 16;
  static void read(const uint8_t* p, Unit* unit) {
    unit->scale = half_at(p);
    read_halves(p + 6, unit->codes);
    read_fifth_bits(p + 2, unit->codes);
  }
};

struct q5_1 : Plain {
  static constexpr int kBytes = 24, kOne = 4, kSign = 1;
  static void read(const uint8_t* p, Unit* unit) {
    unit->scale = half_at(p);
    unit->min = half_at(p + 2);
    read_halves(p + 8, unit->codes);
    read_fifth_bits(p + 4, unit->codes);
  }
};

struct iq4_nl : Plain {
  static constexpr int kBytes = 18, kZero = 128;
  static constexpr bool kIsTable = true;
  static void read(const uint8_t* p, Unit* unit) { q4_0::read(p, unit); }
};

struct iq4_xs : Super {
  static constexpr int kBytes = 136, kZero = 128;
  static constexpr bool kIsTable = true;
  static void read(const uint8_t* p, Unit* unit) {
    unit->scale = half_at(p);
    const int high = half_at(p + 2);
    for (int i = 0; i < 8; i++) {
      unit->scales[i] = ((p[4 + i / 2] >> i % 2 * 4 & 15) | (high >> 2 * i & 3) << 4) - 32;
      read_halves(p + 8 + 16 * i, unit->codes + 32 * i);
    }
  }
};

// Scales and mins of 6 bits, 8 of each in 12 bytes.
inline void read_six_bits(const uint8_t* p, Unit* unit) {
  for (int i = 0; i < 4; i++) {
    unit->scales[i] = p[i] & 63;
    unit->mins[i] = p[i + 4] & 63;
    unit->scales[i + 4] = (p[i + 8] & 15) | p[i] >> 6 << 4;
    unit->mins[i + 4] = p[i + 8] >> 4 | p[i + 4] >> 6 << 4;
  }
}

// Of each 32 bytes the low halves are 32 inputs, the high ones the next 32.
inline void read_long_halves(const uint8_t* bytes, uint8_t* codes) {
  for (int i = 0; i < 256; i++) codes[i] = bytes[i / 64 * 32 + i % 32] >> i / 32 % 2 * 4 & 15;
}

struct q4_k : Super {
  static constexpr int kBytes = 144, kSign = -1;
  static void read(const uint8_t* p, Unit* unit) {
    unit->scale = half_at(p);
    unit->min = half_at(p + 2);
    read_six_bits(p + 4, unit);
    read_long_halves(p + 16, unit->codes);
  }
};

struct q5_k : Super {
  static constexpr int kBytes = 176, kOne = 4, kSign = -1;
  static void read(const uint8_t* p, Unit* unit) {
    unit->scale = half_at(p);
    unit->min = half_at(p + 2);
    read_six_bits(p + 4, unit);
    read_long_halves(p + 48, unit->codes);
    for (int i = 0; i < 256; i++) unit->codes[i] |= (p[16 + i % 32] >> i / 32 & 1) << 4;
  }
};

struct q6_k : Super {
  static constexpr int kBytes = 210, kShared = 16, kTwo = 4, kZero = 32;
  static void read(const uint8_t* p, Unit* unit) {
    unit->scale = half_at(p + 208);
    memcpy(unit->scales, p + 192, 16);
    for (int i = 0; i < 256; i++) {
      const int half = i / 128, quarter = i % 128 / 32;
      const int low = p[64 * half + quarter % 2 * 32 + i % 32] >> quarter / 2 * 4 & 15;
      unit->codes[i] = low | (p[128 + 32 * half + i % 32] >> 2 * quarter & 3) << 4;
    }
  }
};

inline int two_bits(const uint8_t* p, int i) { return p[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3; }

struct q2_k : Super {
  static constexpr int kBytes = 84, kShared = 16, kFour = -1, kTwo = 0, kSign = -1;
  static void read(const uint8_t* p, Unit* unit) {
    unit->scale = half_at(p + 80);
    unit->min = half_at(p + 82);
    for (int i = 0; i < 16; i++) {
      unit->scales[i] = p[i] & 15;
      unit->mins[i] = p[i] >> 4;
    }
    for (int i = 0; i < 256; i++) unit->codes[i] = two_bits(p + 16, i);
  }
};

struct q3_k : Super {
  static constexpr int kBytes = 110, kShared = 16, kFour = -1, kTwo = 0, kOne = 2, kZero = 4;
  static void read(const uint8_t* p, Unit* unit) {
    unit->scale = half_at(p + 108);
    for (int i = 0; i < 16; i++) {
      const int low = p[96 + i % 8] >> i / 8 * 4 & 15;
      unit->scales[i] = (low | (p[104 + i % 4] >> i / 4 * 2 & 3) << 4) - 32;
    }
    for (int i = 0; i < 256; i++)
      unit->codes[i] = two_bits(p + 32, i) | (p[i % 32] >> i / 32 & 1) << 2;
  }
};

}  // namespace

#endif
