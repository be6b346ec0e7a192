// Runs every op kernel over buffers of exactly the size that they may touch, for the sanitizers.
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <vector>

#include "elementwise.cpp"
#include "linear.h"
#include "logits.cpp"
#include "pack.cpp"
#include "rows.cpp"

extern "C" {
void linear_bfloat16_float(const void*, Team*);
void linear_int8_float(const void*, Team*);
void linear_q8_0_float(const void*, Team*);
void linear_bfloat16_dot(const void*, Team*) __attribute__((weak));
void linear_bfloat16_tiles(const void*, Team*) __attribute__((weak));
void linear_int8_vnni(const void*, Team*) __attribute__((weak));
void linear_q8_0_vnni(const void*, Team*) __attribute__((weak));
}

struct Form {
  Kernel pack, unpack, embed;
  Kernel linears[3];  // null: not in this build
  int64_t block_bytes;  // packed, of 32 inputs of an output
};

static int64_t next_item;
static void no_barrier(Team*) {}
static void run(Kernel kernel, const void* args) {
  next_item = 0;
  Team team = {0, 1, no_barrier, &next_item, nullptr};
  kernel(args, &team);
}

// Exactly n elements on the heap, so that one more is found.
template <typename T>
static std::unique_ptr<T[]> make(int64_t n) {
  auto p = std::make_unique<T[]>(n);
  unsigned seed = 7;
  for (int64_t i = 0; i < n * (int64_t)sizeof(T); i += 2) {
    seed = seed * 1664525 + 1013904223;
    const uint16_t bits = 0x3f00 + (seed >> 25) + (seed >> 31 << 15);
    memcpy(reinterpret_cast<char*>(p.get()) + i, &bits, 2);
  }
  return p;
}

// Scales and sums of each output are int8's; Q8_0 is packed from integers and a scale for 32 inputs.
static void linears(int64_t n_out, int64_t n_in, bool gated, const Form& form) {
  const int64_t outputs = gated ? n_out / 2 : n_out, width = gated ? 16 : 32;
  const int64_t places = (outputs + width - 1) / width * 32, blocks = n_in / 32;
  auto plain = make<Bf16>(n_out * n_in);
  auto integers = make<int8_t>(n_out * n_in);
  auto block_scales = make<uint16_t>(n_out * blocks);
  auto packed = std::make_unique<uint8_t[]>(places * blocks * form.block_bytes);
  auto scales = std::make_unique<float[]>(places);
  auto sums = std::make_unique<int32_t[]>(places);
  auto bias = make<Bf16>(n_out);
  PackArgs pack = {plain.get(), packed.get(), scales.get(), sums.get(), n_out, n_in, gated};
  if (form.pack == pack_q8_0) {
    pack.plain = integers.get();
    pack.scales = block_scales.get();
  }
  run(form.pack, &pack);
  pack.plain = plain.get();
  run(form.unpack, &pack);
  for (int64_t rows : {0, 1, 4, 5, 6, 12, 13, 16, 17, 33, 1 + rand() % 300}) {
    auto x = make<Bf16>(rows * n_in), out = make<Bf16>(rows * outputs);
    const int64_t prepared = rows <= 4 ? rows : kPanel + rows + 11;  // _scratch_floats
    auto scratch = make<float>(n_in * (prepared > 8 ? prepared : 8));
    const LinearArgs args = {x.get(),    packed.get(), scales.get(), sums.get(), bias.get(), out.get(),
                             scratch.get(), rows,      n_in,         outputs,    n_in,       outputs,   gated};
    for (Kernel linear : form.linears)
      if (linear) run(linear, &args);
  }
  const std::vector<int64_t> ids = {0, n_out - 1};
  auto out = make<Bf16>(2 * n_in);
  const EmbeddingArgs embed = {ids.data(), packed.get(), scales.get(), out.get(), 2, 2 * n_in, n_in, 1};
  run(form.embed, &embed);
}

template <typename T>
static void rows_of(int64_t width, Kernel norm, Kernel turn, Kernel rotate, Kernel silu, Kernel best,
                    Kernel top) {
  const int64_t rows = 3;
  auto x = make<T>(rows * 2 * width), residual = make<T>(rows * width), weight = make<T>(width);
  auto out = make<T>(rows * width);
  const NormArgs n = {x.get(), residual.get(), weight.get(), out.get(), rows, width, 2 * width, width, 1e-5f};
  run(norm, &n);
  const SiluArgs s = {x.get(), out.get(), rows, width, 2 * width};
  run(silu, &s);
  const int64_t positions[rows] = {0, 5, 131071};
  auto frequencies = make<float>(width);
  auto cos = make<T>(rows * 2 * width), sin = make<T>(rows * 2 * width), heads = make<T>(2 * width);
  const RotationArgs r = {positions, frequencies.get(), cos.get(), sin.get(), rows, width, 1.0f};
  run(turn, &r);
  const RotaryArgs q = {x.get(), cos.get(), sin.get(), heads.get(), rows, 1, width, 2 * width, 1e-5f};
  run(rotate, &q);
  auto ids = make<int64_t>(rows * width);
  auto scores = make<float>(rows * width), scratch = make<float>(2 * rows * width);
  const ArgmaxArgs a = {x.get(), ids.get(), scores.get(), scratch.get(), rows, width, 2 * width};
  run(best, &a);
  const TopKArgs k = {x.get(), ids.get(), scores.get(), scratch.get(), rows, width, 2 * width, width};
  run(top, &k);
}

int main() {
  srand(static_cast<unsigned>(time(nullptr)));
  const Form forms[] = {
      {pack_bfloat16, unpack_bfloat16, embedding_packed_bfloat16,
       {linear_bfloat16_float, linear_bfloat16_dot, linear_bfloat16_tiles}, 64},
      {pack_int8, unpack_int8, embedding_packed_int8, {linear_int8_float, linear_int8_vnni}, 32},
      {pack_q8_0, unpack_q8_0, embedding_packed_q8_0, {linear_q8_0_float, linear_q8_0_vnni}, 34}};
  for (const Form& form : forms)
    for (int64_t n_in : {32, 96})
      for (int64_t n_out : {2, 30, 32, 34, 70})
        for (bool gated : {false, true}) linears(n_out, n_in, gated, form);
  for (int64_t width : {1, 4, 15, 16, 17, 64, 100}) {
    rows_of<float>(width, add_rms_norm_float32, rotation_float32, rotary_float32, silu_and_mul_float32,
                   argmax_float32, top_k_float32);
    rows_of<Bf16>(width, add_rms_norm_bfloat16, rotation_bfloat16, rotary_bfloat16,
                  silu_and_mul_bfloat16, argmax_bfloat16, top_k_bfloat16);
  }
  puts("done");
}
