// Attention over buffers of exactly the right size, against sums in double; run under sanitizers.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <vector>

#include "args.h"
#include "stepgraph_kernel.h"

extern "C" int stepgraph_plan_attention(const void*);
extern "C" void stepgraph_attention(const void*, Team*);
extern "C" int64_t stepgraph_attention_workspace(int);

namespace {

using namespace sg;

uint32_t state = 1;

float random_number() {
  state = state * 1664525u + 1013904223u;
  return (float)(state >> 8) / (1 << 24) * 2 - 1;
}

// `count` elements of a type on the heap, not a byte more, and their values.
struct Numbers {
  std::vector<char> bytes;
  std::vector<double> values;

  Numbers(int64_t count, int32_t dtype) : bytes(count * (dtype == kFloat32 ? 4 : 2)), values(count) {
    for (int64_t i = 0; i < count; i++) {
      float x = random_number();
      uint32_t bits;
      memcpy(&bits, &x, 4);
      bits &= dtype == kFloat16 ? 0xffffe000u : 0xffff0000u;  // exact in every type
      memcpy(&x, &bits, 4);
      if (dtype == kFloat16 && fabsf(x) < 6.2e-5f) x = bits = 0;
      values[i] = x;
      if (dtype == kFloat32) memcpy(&bytes[4 * i], &x, 4);
      if (dtype == kBfloat16) set(i, bits >> 16);
      if (dtype == kFloat16) set(i, x == 0 ? 0 : (bits >> 16 & 0x8000) | ((bits & 0x7fffffff) - (112u << 23)) >> 13);
    }
  }

  void set(int64_t i, uint32_t half) {
    const uint16_t x = (uint16_t)half;
    memcpy(&bytes[2 * i], &x, 2);
  }
};

struct Case {
  int q_heads, kv_heads, dim, block_size, window;
  float softcap;
  int32_t dtype, kv_dtype;
  bool heads_first;
  std::vector<int> queries, keys;
};

double number(const std::vector<char>& out, int64_t i, int32_t dtype) {
  uint32_t bits = 0;
  memcpy(&bits, &out[(dtype == kFloat32 ? 4 : 2) * i], dtype == kFloat32 ? 4 : 2);
  if (dtype == kFloat16) {
    const int exponent = bits >> 10 & 31, fraction = bits & 0x3ff;
    const double magnitude = exponent ? ldexp(fraction | 0x400, exponent - 25) : ldexp(fraction, -24);
    return bits & 0x8000 ? -magnitude : magnitude;
  }
  if (dtype == kBfloat16) bits <<= 16;
  float x;
  memcpy(&x, &bits, 4);
  return x;
}

double run(const Case& c) {
  const int reqs = (int)c.queries.size(), padding = 2;
  std::vector<int32_t> starts(1), table, lens(c.keys.begin(), c.keys.end());
  int width = 1, blocks = 2;
  for (int r = 0; r < reqs; r++) {
    starts.push_back(starts.back() + c.queries[r]);
    width = std::max(width, (c.keys[r] + c.block_size - 1) / c.block_size);
  }
  for (int r = 0; r < reqs; r++) {
    for (int b = 0; b < width; b++) table.push_back(b * c.block_size < c.keys[r] ? blocks++ : 0);
  }
  const int tokens = starts.back(), group = c.q_heads / c.kv_heads;
  const int64_t kv_count = (int64_t)blocks * c.block_size * c.kv_heads * c.dim;
  Numbers q((int64_t)tokens * c.q_heads * c.dim, c.dtype), k(kv_count, c.kv_dtype), v(kv_count, c.kv_dtype);
  std::vector<char> out((int64_t)(tokens + padding) * c.q_heads * c.dim * (c.dtype == kFloat32 ? 4 : 2), (char)0xff);

  std::vector<Item> items(4096);
  std::vector<Merge> merges(64);
  const int max_rows = 4096;
  std::vector<float> partials((int64_t)max_rows * (c.dim + 2));
  Plan plan = {0, 0, 0, (int)items.size(), (int)merges.size(), max_rows, items.data(), merges.data()};
  PlanArgs plan_args = {&plan, starts.data(), lens.data(), reqs, c.kv_heads, group, c.window, 4};
  if (!stepgraph_plan_attention(&plan_args)) return 1e9;

  const int64_t bytes = stepgraph_attention_workspace(c.dim);
  char* workspace = (char*)aligned_alloc(64, bytes);
  const int64_t per_head = (int64_t)c.dim, per_token = c.heads_first ? c.dim : (int64_t)c.kv_heads * c.dim;
  AttendArgs args = {};
  args.plan = &plan;
  args.q = q.bytes.data(), args.out = out.data(), args.k = k.bytes.data(), args.v = v.bytes.data();
  args.block_table = table.data(), args.partials = partials.data(), args.workspace = workspace;
  args.q_token = args.out_token = (int64_t)c.q_heads * c.dim, args.q_head = args.out_head = c.dim;
  args.kv_block = (int64_t)c.block_size * c.kv_heads * c.dim, args.kv_token = per_token;
  args.kv_head = c.heads_first ? (int64_t)c.block_size * c.dim : per_head;
  args.table_row = width, args.workspace_bytes = bytes, args.workspace_threads = 1;
  args.out_tokens = tokens + padding, args.num_q_heads = c.q_heads, args.num_kv_heads = c.kv_heads;
  args.head_dim = c.dim, args.block_size = c.block_size, args.window = c.window;
  args.dtype = c.dtype, args.kv_dtype = c.kv_dtype, args.scale = 1 / sqrtf((float)c.dim), args.softcap = c.softcap;
  int64_t next = 0;
  Team team = {0, 1, [](Team*) {}, &next, nullptr};
  stepgraph_attention(&args, &team);
  free(workspace);

  double worst = 0;
  for (int r = 0; r < reqs; r++) {
    for (int t = 0; t < c.queries[r]; t++) {
      const int position = c.keys[r] - c.queries[r] + t;
      const int first = c.window > 0 ? std::max(0, position - c.window + 1) : 0;
      for (int h = 0; h < c.q_heads; h++) {
        std::vector<double> sum(c.dim);
        double total = 0;
        const double* query = &q.values[((int64_t)(starts[r] + t) * c.q_heads + h) * c.dim];
        for (int key = first; key <= position; key++) {
          const int64_t at = table[r * width + key / c.block_size] * args.kv_block +
                             key % c.block_size * args.kv_token + h / group * args.kv_head;
          double score = 0;
          for (int d = 0; d < c.dim; d++) score += query[d] * k.values[at + d];
          score *= args.scale;
          if (c.softcap > 0) score = c.softcap * tanh(score / c.softcap);
          const double weight = exp(score);
          total += weight;
          for (int d = 0; d < c.dim; d++) sum[d] += weight * v.values[at + d];
        }
        for (int d = 0; d < c.dim; d++) {
          const double got = number(out, ((int64_t)(starts[r] + t) * c.q_heads + h) * c.dim + d, c.dtype);
          const double error = fabs(got - sum[d] / total);
          if (!(error <= worst)) worst = error;
        }
      }
    }
  }
  const size_t padded = (size_t)padding * c.q_heads * c.dim * (c.dtype == kFloat32 ? 4 : 2);
  for (size_t i = out.size() - padded; i < out.size(); i++) {
    if (out[i] != 0) return 1e9;
  }
  return worst;
}

}  // namespace

int main() {
  int failed = 0, done = 0;
  const int shapes[][3] = {{1, 1, 32}, {3, 1, 64}, {4, 2, 48}, {8, 1, 80}, {14, 2, 128}, {9, 3, 256}, {2, 2, 16}};
  for (auto& shape : shapes) {
    for (int variant = 0; variant < 12; variant++) {
      Case c = {shape[0], shape[1], shape[2], 16, 0, 0, variant % 3, variant % 3, variant % 2 == 0, {}, {}};
      if (variant == 5) c.kv_dtype = kFloat32;
      c.queries = {1, 9, 1, 47}, c.keys = {1, 9, 300, 270};
      if (variant >= 3) c.block_size = 5, c.window = variant >= 6 ? 33 : 0, c.queries = {1, 2, 0, 5}, c.keys = {700, 513, 0, 5};
      if (variant >= 9) c.block_size = 128, c.window = 0, c.softcap = 8, c.queries = {50}, c.keys = {50};
      const double error = run(c), limit = c.dtype == kFloat32 ? 1e-5 : c.dtype == kBfloat16 ? 8e-3 : 1e-3;
      done++;
      if (!(error <= limit)) {
        printf("heads %d/%d dim %d variant %d: off by %g\n", shape[0], shape[1], shape[2], variant, error);
        failed++;
      }
    }
  }
  printf("%d cases, %d failed\n", done, failed);
  return failed != 0;
}
