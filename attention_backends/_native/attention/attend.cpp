// Attention of a ragged batch over the paged cache.
//
// An item is a tile of query rows (tokens x the query heads of one K/V head) and a run of chunks of keys. For each
// chunk, keys and values are packed once; then, some rows at a time: scores, softmax, weighted values. Chunks are
// summed in order by their running maximum. Sums are in float32.
#include "args.h"
#include "elements.h"
#include "few_rows.h"
#include "pack.h"
#include "product.h"
#include "softmax.h"
#include "stepgraph_kernel.h"
#include "tiles.h"

namespace {

using namespace sg;

constexpr int kMaxRows = 32;  // whose scores are in L1 together, over all paths
constexpr int kManyItems = 8;  // for each thread
constexpr int kMaxHeadDim = 512;
alignas(64) const char kZeros[kMaxHeadDim * sizeof(float)] = {};
constexpr float kLog2E = 1.44269504088896340736f;

int round_up(int n, int multiple) { return (n + multiple - 1) / multiple * multiple; }

// Call `function` with the element type that `dtype` names.
template <class Function>
void with_type(int32_t dtype, Function function) {
  switch (dtype) {
    case kFloat32: return function(Float32());
    case kBfloat16: return function(Bfloat16());
    case kFloat16: return function(Float16());
  }
}

// How a chunk is packed, multiplied and weighted: in floats, in bf16 pairs, or in tiles of pairs.
struct InFloats {
  typedef Floats Kind;
  static constexpr int kRows = 4 * kBlockRows;
  static constexpr int kKeys = W;  // keys are padded to a multiple
  static constexpr int kKeysOfWord = 1;
  static void open() {}
  static void close() {}
  static int depth(int head_dim) { return head_dim; }
  static bool serves_few_rows(int, int) { return false; }

  static void pack_rows(const AttendArgs& args, const void* q, int, float* out) {
    with_type(args.dtype, [&](auto type) {
      typedef decltype(type) Type;
      for (int d = 0; d < args.head_dim; d += W) store(out + d, Type::read((const typename Type::Raw*)q + d));
    });
  }
  static void pack_k(const AttendArgs& args, const void* const* keys, int num_keys, float* out) {
    with_type(args.kv_dtype, [&](auto type) { pack_keys<decltype(type)>(keys, num_keys, args.head_dim, out); });
  }
  static void pack_v(const AttendArgs& args, const void* const* keys, int num_keys, float* out) {
    with_type(args.kv_dtype, [&](auto type) { pack_values<decltype(type)>(keys, num_keys, args.head_dim, out); });
  }
  static void multiply(const float* a, int lda, Packed b, float* c, int ldc, int M, int N, int K) {
    product<Floats>(a, lda, b, c, ldc, M, N, K);
  }
  static void score_few(int, const float*, int, const void* const*, int, float*) {}
  static void sum_few(int, const float*, const void* const*, int, int, float*) {}
};

#if defined(__AVX512BF16__)
struct InPairs {
  typedef Pairs Kind;
  static constexpr int kRows = 4 * kBlockRows;
  static constexpr int kKeys = W;
  static constexpr int kKeysOfWord = 2;
  static void open() {}
  static void close() {}
  static int depth(int head_dim) { return round_up(head_dim / 2, 16); }
  static bool serves_few_rows(int rows, int head_dim) { return few_rows_serve(rows, head_dim); }

  static void pack_rows(const AttendArgs& args, const void* q, int depth, float* out) {
    memcpy(out, q, 2 * args.head_dim);
    memset(out + args.head_dim / 2, 0, 4 * (depth - args.head_dim / 2));
  }
  static void pack_k(const AttendArgs& args, const void* const* keys, int num_keys, float* out) {
    pack_key_pairs(keys, num_keys, args.head_dim, depth(args.head_dim), out);
  }
  static void pack_v(const AttendArgs& args, const void* const* keys, int num_keys, float* out) {
    pack_value_pairs(keys, num_keys, args.head_dim, out);
  }
  static void multiply(const float* a, int lda, Packed b, float* c, int ldc, int M, int N, int K) {
    product<Pairs>(a, lda, b, c, ldc, M, N, K);
  }
  static void score_few(int rows, const float* q, int depth, const void* const* keys, int num_keys, float* scores) {
    scores_of_few(rows, q, depth, keys, num_keys, kChunk, scores);
  }
  static void sum_few(int rows, const float* weights, const void* const* keys, int num_keys, int dim, float* out) {
    values_of_few(rows, weights, kChunk / 2, keys, num_keys, dim, out);
  }
};
#endif

#if defined(STEPGRAPH_HAS_TILES)
struct InTiles : InPairs {
  static constexpr int kRows = 32;
  static constexpr int kKeys = 32;
  static void open() { open_tiles(); }
  static void close() { close_tiles(); }
  static void multiply(const float* a, int lda, Packed b, float* c, int ldc, int M, int N, int K) {
    tile_product(a, lda, b, c, ldc, M, N, K);
  }
};
#endif

// A thread's arrays; `stepgraph_attention_workspace` says how many bytes they take.
struct Workspace {
  const void** k_rows;  // [2 * kChunk + kAhead], where each key of a chunk is, then each value, then the next keys
  float* rows;       // [kTileRows, depth]
  float* keys;       // panels of [depth, kPanel], kChunk keys
  float* values;     // [kChunk / keys of a word, head_dim]
  float* scores;     // [kMaxRows, kChunk]
  float* weights;    // [kMaxRows, kChunk]
  float* part;       // [kMaxRows, head_dim], of one chunk
  float* sums;       // [kTileRows, head_dim], over chunks
  float* state;      // [kTileRows, 2]: maximum and sum of weights

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
    weights = (float*)take((int64_t)kMaxRows * kChunk, 4);
    part = (float*)take((int64_t)kMaxRows * head_dim, 4);
    sums = (float*)take((int64_t)kTileRows * head_dim, 4);
    state = (float*)take((int64_t)kTileRows * 2, 4);
    return used;
  }
};

int64_t element_bytes(int32_t dtype) { return dtype == kFloat32 ? 4 : 2; }

void write_row(const AttendArgs& args, int token, int head, const float* sums, float weight) {
  char* out = (char*)args.out + element_bytes(args.dtype) * (token * args.out_token + head * args.out_head);
  const float inverse = 1.0f / weight;
  with_type(args.dtype, [&](auto type) {
    typedef decltype(type) Type;
    for (int d = 0; d < args.head_dim; d += W) Type::write((typename Type::Raw*)out + d, load(sums + d) * inverse);
  });
}

// Add a chunk's result to a row's: both are weighted to the larger maximum.
void add_chunk(float* sums, float* state, const float* part, float part_max, float part_weight, int head_dim) {
  if (part_weight == 0) return;
  const float most = part_max > state[0] ? part_max : state[0];
  const float old = exp2_one(state[0] - most), fresh = exp2_one(part_max - most);
  for (int d = 0; d < head_dim; d += W) store(sums + d, load(sums + d) * old + load(part + d) * fresh);
  state[0] = most;
  state[1] = state[1] * old + part_weight * fresh;
}

template <class Path>
class Tile {
 public:
  Tile(const AttendArgs& args, const Item& item, const Item* next, const Workspace& space)
      : args_(args), item_(item), next_(next), space_(space), group_(args.num_q_heads / args.num_kv_heads),
        num_rows_(item.num_tokens * group_), depth_(Path::depth(args.head_dim)),
        few_(Path::serves_few_rows(num_rows_, args.head_dim)) {}

  void run() {
    pack_rows();
    for (int chunk = item_.chunk; chunk < item_.end_chunk; chunk++) {
      const int keys = find_keys(chunk * kChunk);
      if (few_) {
        attend_rows(chunk, 0, keys);
        continue;
      }
      Path::pack_k(args_, space_.k_rows, round_up(keys, Path::kKeys), space_.keys);
      Path::pack_v(args_, v_rows_, round_up(keys, Path::kKeys), space_.values);
      for (int row = 0; row < num_rows_; row += Path::kRows) attend_rows(chunk, row, keys);
    }
    if (item_.partial < 0) write();
  }

 private:
  void pack_rows() {
    const int64_t size = element_bytes(args_.dtype);
    const char* q = (const char*)args_.q + size * (item_.token * args_.q_token + item_.kv_head * group_ * args_.q_head);
    for (int row = 0; row < num_rows_; row++) {
      const char* from = q + size * (row / group_ * args_.q_token + row % group_ * args_.q_head);
      Path::pack_rows(args_, from, depth_, space_.rows + (int64_t)row * depth_);
    }
    memset(space_.sums, 0, sizeof(float) * num_rows_ * args_.head_dim);
    for (int row = 0; row < num_rows_; row++) {
      space_.state[2 * row] = -__builtin_inff();
      space_.state[2 * row + 1] = 0;
    }
  }

  // Find where the keys from `first` on are that any row sees, their values, and the keys to come after them; how
  // many there are, from `first`.
  int find_keys(int first) {
    const int end = item_.position + item_.num_tokens, low = lowest_visible(item_.position);
    const int keys = end - first < kChunk ? end - first : kChunk, padded = round_up(keys, Path::kKeys);
    const int begin = low > first ? low - first : 0;
    v_rows_ = space_.k_rows + padded;
    locate(item_, args_.k, first, begin, keys, padded, space_.k_rows);
    locate(item_, args_.v, first, begin, keys, padded, v_rows_);
    locate_coming(first + kChunk, end, v_rows_ + padded);
    return keys;
  }

  // The first keys of the next chunk, of this item or of the next one.
  void locate_coming(int first, int end, const void** rows) {
    const bool goes_on = first < end || next_ == nullptr;
    const Item& item = goes_on ? item_ : *next_;
    const int from = goes_on ? first : item.chunk * kChunk;
    const int left = item.position + item.num_tokens - from;
    locate(item, args_.k, from, 0, left < kAhead ? left : kAhead, kAhead, rows);
  }

  // rows[begin..end) of the cache for an item's keys from `first` on, and zeros for all others below `padded`.
  void locate(const Item& item, const void* cache, int first, int begin, int end, int padded, const void** rows) {
    for (int i = 0; i < begin; i++) rows[i] = kZeros;
    for (int i = end > 0 ? end : 0; i < padded; i++) rows[i] = kZeros;
    const int32_t* table = args_.block_table + item.request * args_.table_row;
    const int64_t size = element_bytes(args_.kv_dtype);
    for (int i = begin; i < end;) {
      const int block = (first + i) / args_.block_size, place = (first + i) % args_.block_size;
      const int64_t base = table[block] * args_.kv_block + item.kv_head * args_.kv_head;
      for (int p = place; p < args_.block_size && i < end; p++, i++) {
        rows[i] = (const char*)cache + size * (base + p * args_.kv_token);
      }
    }
  }

  int lowest_visible(int position) const {
    return args_.window > 0 && position >= args_.window ? position - args_.window + 1 : 0;
  }

  void attend_rows(int chunk, int row, int keys) {
    const int first = chunk * kChunk;
    const int rows = num_rows_ - row < Path::kRows ? num_rows_ - row : Path::kRows;
    const int last_position = item_.position + (row + rows - 1) / group_;
    const int seen = last_position + 1 - first < keys ? last_position + 1 - first : keys;
    const int padded = seen > 0 ? round_up(seen, Path::kKeys) : 0;
    float maxima[Path::kRows], weights[Path::kRows];
    typedef typename Path::Kind Kind;
    score(row, rows, padded);
    for (int i = 0; i < rows; i++) {
      const int position = item_.position + (row + i) / group_;
      const int low = lowest_visible(position) - first, end = position + 1 - first;
      const Visible visible = {low > 0 ? low : 0, end < seen ? end : seen, padded};
      weigh<Kind>(space_.scores + i * kChunk, space_.weights + i * (kChunk / Path::kKeysOfWord), visible,
                  {args_.scale * kLog2E, args_.softcap}, &maxima[i], &weights[i]);
    }
    sum_values(rows, padded);
    for (int i = 0; i < rows; i++) keep(chunk, row + i, space_.part + i * args_.head_dim, maxima[i], weights[i]);
  }

  void score(int row, int rows, int keys) {
    const float* q = space_.rows + (int64_t)row * depth_;
    if (few_) return Path::score_few(rows, q, depth_, space_.k_rows, keys, space_.scores);
    const Packed k = {space_.keys, kPanel, (int64_t)depth_ * kPanel};
    Path::multiply(q, depth_, k, space_.scores, kChunk, rows, keys, depth_);
  }

  void sum_values(int rows, int keys) {
    const int dim = args_.head_dim;
    if (few_) return Path::sum_few(rows, space_.weights, v_rows_, keys, dim, space_.part);
    const Packed v = {space_.values, dim, 0};
    Path::multiply(space_.weights, kChunk / Path::kKeysOfWord, v, space_.part, dim, rows, dim,
                                 keys / Path::kKeysOfWord);
  }

  void keep(int chunk, int row, const float* part, float maximum, float weight) {
    if (item_.partial < 0) {
      add_chunk(space_.sums + (int64_t)row * args_.head_dim, space_.state + 2 * row, part, maximum, weight,
                args_.head_dim);
      return;
    }
    const int64_t index = item_.partial + (int64_t)(chunk - item_.chunk) * num_rows_ + row;
    float* partial = args_.partials + index * (args_.head_dim + 2);
    memcpy(partial, part, sizeof(float) * args_.head_dim);
    partial[args_.head_dim] = maximum;
    partial[args_.head_dim + 1] = weight;
  }

  void write() {
    for (int row = 0; row < num_rows_; row++) {
      write_row(args_, item_.token + row / group_, item_.kv_head * group_ + row % group_,
                       space_.sums + (int64_t)row * args_.head_dim, space_.state[2 * row + 1]);
    }
  }

  const AttendArgs& args_;
  const Item& item_;
  const Item* next_;  // that this thread takes after this one, where it is known
  const Workspace& space_;
  const int group_, num_rows_, depth_;
  const bool few_;
  const void** v_rows_ = nullptr;  // of the chunk
};

// Sum the chunks of one row that was split over its keys.
void merge_row(const AttendArgs& args, const Merge& merge, int row, float* sums) {
  const int group = args.num_q_heads / args.num_kv_heads, num_rows = merge.num_tokens * group;
  float state[2] = {-__builtin_inff(), 0};
  memset(sums, 0, sizeof(float) * args.head_dim);
  for (int chunk = 0; chunk < merge.num_chunks; chunk++) {
    const int64_t index = merge.partial + (int64_t)chunk * num_rows + row;
    const float* partial = args.partials + index * (args.head_dim + 2);
    add_chunk(sums, state, partial, partial[args.head_dim], partial[args.head_dim + 1], args.head_dim);
  }
  write_row(args, merge.token + row / group, merge.kv_head * group + row % group, sums, state[1]);
}

void zero_padding(const AttendArgs& args, const Team* team) {
  const int64_t size = element_bytes(args.dtype);
  int64_t begin, end;
  team_range(team, args.out_tokens - args.plan->num_tokens, 1, &begin, &end);
  for (int64_t i = begin; i < end; i++) {
    for (int head = 0; head < args.num_q_heads; head++) {
      const int64_t offset = (args.plan->num_tokens + i) * args.out_token + head * args.out_head;
      memset((char*)args.out + size * offset, 0, size * args.head_dim);
    }
  }
}

// Where there are many items, a thread takes the next one early, so that its first keys are on their way.
template <class Path>
void run_items(const AttendArgs& args, Team* team, const Workspace& space) {
  const Plan& plan = *args.plan;
  const bool early = plan.num_items >= kManyItems * team->num_threads;
  int64_t i = team_next(team);
  while (i < plan.num_items) {
    int64_t next = early ? team_next(team) : 0;
    const Item* upcoming = early && next < plan.num_items ? &plan.items[next] : nullptr;
    Tile<Path>(args, plan.items[i], upcoming, space).run();
    i = early ? next : team_next(team);
  }
}

template <class Path>
void attend(const AttendArgs& args, Team* team) {
  const Plan& plan = *args.plan;
  Workspace space;
  const bool works = team->thread < args.workspace_threads;
  if (works) {
    space.lay_out(args.workspace + team->thread * args.workspace_bytes, args.head_dim);
    Path::open();
    run_items<Path>(args, team, space);
    Path::close();
  }
  zero_padding(args, team);
  if (plan.num_merges == 0) return;
  team_barrier(team);
  if (!works) return;
  for (int i = 0; i < plan.num_merges; i++) {
    const int rows = plan.merges[i].num_tokens * (args.num_q_heads / args.num_kv_heads);
    for (int row = 0; row < rows; row++) {
      const int workers = team->num_threads < args.workspace_threads ? team->num_threads : args.workspace_threads;
      if ((i + row) % workers == team->thread) merge_row(args, plan.merges[i], row, space.sums);
    }
  }
}

}  // namespace

extern "C" STEPGRAPH_EXPORT void stepgraph_attention(const void* untyped, Team* team) {
  const AttendArgs& args = *static_cast<const AttendArgs*>(untyped);
  const bool all_bf16 = args.dtype == kBfloat16 && args.kv_dtype == kBfloat16;
#if defined(STEPGRAPH_HAS_TILES)
  if (all_bf16) return attend<InTiles>(args, team);
#elif defined(__AVX512BF16__)
  if (all_bf16) return attend<InPairs>(args, team);
#endif
  (void)all_bf16;
  attend<InFloats>(args, team);
}

extern "C" STEPGRAPH_EXPORT int64_t stepgraph_attention_workspace(int head_dim) {
  return Workspace::num_bytes(head_dim);
}
