// One item of work: a tile of query rows (tokens x the query heads of one K/V head) over a run of chunks of keys.
//
// For each chunk, keys and values are packed once; then, some rows at a time: scores, softmax, weighted values. Chunks
// are summed in order by their running maximum. Sums are in float32.
#pragma once

#include "paths.h"

namespace sg {

constexpr int kMaxHeadDim = 512;
alignas(64) constexpr char kZeros[kMaxHeadDim * sizeof(float)] = {};
constexpr float kLog2E = 1.44269504088896340736f;

inline int64_t element_bytes(int32_t dtype) { return dtype == kFloat32 ? 4 : 2; }

inline void write_row(const AttendArgs& args, void* out, const float* sums, float weight) {
  const float inverse = 1.0f / weight;
  with_type(args.dtype, [&](auto type) {
    typedef decltype(type) Type;
    for (int d = 0; d < args.head_dim; d += W) Type::write((typename Type::Raw*)out + d, load(sums + d) * inverse);
  });
}

// Add a chunk's result to a row's: both are weighted to the larger maximum.
inline void add_chunk(float* sums, float* state, const float* part, float part_max, float part_weight, int head_dim) {
  if (part_weight == 0) return;
  if (state[1] == 0) {
    memcpy(sums, part, sizeof(float) * head_dim);
    state[0] = part_max, state[1] = part_weight;
    return;
  }
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
        per_group_(((1 << 16) + group_ - 1) / group_), num_rows_(item.num_tokens * group_),
        depth_(Path::depth(args.head_dim)), row_bytes_(element_bytes(args.dtype) * args.head_dim) {}

  void run() {
    pack_rows();
    const bool whole = item_.partial < 0;
    for (int number = item_.chunk; number < item_.end_chunk; number++) {
      const Chunk chunk = find_keys(number * kChunk);
      Path::pack(args_, chunk, space_);
      const bool last = number + 1 == item_.end_chunk;
      for (int row = 0; row < num_rows_; row += Path::kRows) {
        const int end = row + Path::kRows < num_rows_ ? row + Path::kRows : num_rows_;
        if (last && whole) prefetch_out(row, end);
        if (last && next_ != nullptr) prefetch_q(row, end);
        attend_rows(number, chunk, row, end - row);
        if (last && whole) write(row, end);
      }
    }
  }

 private:
  void pack_rows() {
    for (int row = 0; row < num_rows_; row++) {
      Path::pack_row(args_, q_row(item_, row), space_.rows + (int64_t)row * depth_);
      space_.state[2 * row] = -__builtin_inff();
      space_.state[2 * row + 1] = 0;
    }
  }

  // Bytes from an array's start to an item's row, where tokens and heads are so many elements apart.
  int64_t offset(const Item& item, int row, int64_t per_token, int64_t per_head) const {
    const int token = token_of(row), head = row - token * group_;
    return element_bytes(args_.dtype) *
           ((item.token + token) * per_token + (item.kv_head * group_ + head) * per_head);
  }
  const char* q_row(const Item& item, int row) const {
    return (const char*)args_.q + offset(item, row, args_.q_token, args_.q_head);
  }
  char* out_row(int row) const { return (char*)args_.out + offset(item_, row, args_.out_token, args_.out_head); }

  // While products run: what will be written, and the next item's queries.
  void prefetch_out(int row, int end) const {
    for (; row < end; row++) {
      const char* out = out_row(row);
      for (int64_t at = 0; at < row_bytes_; at += kLineBytes) __builtin_prefetch(out + at, 1);
    }
  }
  void prefetch_q(int row, int end) const {
    for (; row < end && row < next_->num_tokens * group_; row++) {
      const char* q = q_row(*next_, row);
      for (int64_t at = 0; at < row_bytes_; at += kLineBytes) __builtin_prefetch(q + at);
    }
  }

  int lowest_visible(int position) const {
    return args_.window > 0 && position >= args_.window ? position - args_.window + 1 : 0;
  }

  // Keys from `first` on that the rows at positions `from` to `to` see, in the chunk.
  Span seen_by(int from, int to, int first) const {
    const int low = lowest_visible(from) - first, end = to + 1 - first;
    return {low > 0 ? low : 0, end < kChunk ? end : kChunk};
  }

  static Span padded(Span span) { return {span.begin / kPanel * kPanel, round_up(span.end, Path::kKeys)}; }

  // Find where the keys from `first` on are that any row sees, their values, and the keys to come after them.
  Chunk find_keys(int first) const {
    const int last = item_.position + item_.num_tokens - 1;
    const Span seen = seen_by(item_.position, last, first), span = padded(seen);
    const void **k_rows = space_.k_rows, **v_rows = k_rows + span.end;
    locate(item_, args_.k, first, seen, span, k_rows);
    const intptr_t apart = (intptr_t)args_.v - (intptr_t)args_.k;
    for (int i = span.begin; i < span.end; i++) {
      v_rows[i] = k_rows[i] == kZeros ? kZeros : (const void*)((intptr_t)k_rows[i] + apart);
    }
    locate_coming(first + kChunk, last + 1, v_rows + span.end);
    return {k_rows, v_rows, span};
  }

  // The first keys of the next chunk, of this item or of the next one.
  void locate_coming(int first, int end, const void** rows) const {
    const bool goes_on = first < end || next_ == nullptr;
    const Item& item = goes_on ? item_ : *next_;
    const int from = goes_on ? first : item.chunk * kChunk;
    const int left = item.position + item.num_tokens - from;
    locate(item, args_.k, from, {0, left < kAhead ? left : kAhead}, {0, kAhead}, rows);
  }

  // rows[seen.begin..seen.end) of the cache for an item's keys from `first` on, and zeros for the rest of `span`.
  void locate(const Item& item, const void* cache, int first, Span seen, Span span, const void** rows) const {
    for (int i = span.begin; i < seen.begin; i++) rows[i] = kZeros;
    for (int i = seen.end > 0 ? seen.end : 0; i < span.end; i++) rows[i] = kZeros;
    const int block_size = args_.block_size;
    const int64_t size = element_bytes(args_.kv_dtype), per_block = size * args_.kv_block, per_key = size * args_.kv_token;
    const char* heads = (const char*)cache + size * item.kv_head * args_.kv_head;
    const int32_t* block = args_.block_table + item.request * args_.table_row + (first + seen.begin) / block_size;
    int place = (first + seen.begin) % block_size;
    for (int i = seen.begin; i < seen.end; block++, place = 0) {
      const char* keys = heads + *block * per_block + place * per_key;
      const int count = block_size - place < seen.end - i ? block_size - place : seen.end - i;
      for (int j = 0; j < count; j++) rows[i + j] = keys + j * per_key;
      i += count;
    }
  }

  void attend_rows(int number, const Chunk& chunk, int row, int rows) {
    const int first = number * kChunk, dim = args_.head_dim;
    float maxima[Path::kRows] = {}, totals[Path::kRows] = {};
    const Span seen = seen_by(position_of(row), position_of(row + rows - 1), first);
    if (seen.begin < seen.end) {
      Span visible[Path::kRows];
      for (int i = 0; i < rows; i++) visible[i] = seen_by(position_of(row + i), position_of(row + i), first);
      const Span span = padded(seen);
      Path::score(dim, chunk, space_, space_.rows + (int64_t)row * depth_, rows, span);
      const Scoring scoring = {args_.scale * kLog2E, args_.softcap};
      if (args_.dtype == kFloat32) {
        weigh<typename Path::Weights, false>(space_.scores, kChunk, rows, span, visible, scoring, maxima, totals);
      } else {
        weigh<typename Path::Weights, true>(space_.scores, kChunk, rows, span, visible, scoring, maxima, totals);
      }
      Path::sum_values(dim, chunk, space_, rows, span);
    }
    for (int i = 0; i < rows; i++) keep(number, row + i, space_.part + i * dim, maxima[i], totals[i]);
  }

  // row / group_ without dividing: exact while row * (group_ - 1) < 2^16.
  int token_of(int row) const { return row * per_group_ >> 16; }
  static_assert(kTileRows * kTileRows <= 1 << 16, "token_of is exact for every row of a tile");

  int position_of(int row) const { return item_.position + token_of(row); }

  void keep(int number, int row, const float* part, float maximum, float total) {
    const int dim = args_.head_dim;
    if (item_.partial < 0) {
      add_chunk(space_.sums + (int64_t)row * dim, space_.state + 2 * row, part, maximum, total, dim);
      return;
    }
    const int64_t index = item_.partial + (int64_t)(number - item_.chunk) * num_rows_ + row;
    float* partial = args_.partials + index * (dim + 2);
    if (total != 0) memcpy(partial, part, sizeof(float) * dim);
    partial[dim] = maximum;
    partial[dim + 1] = total;
  }

  void write(int row, int end) {
    for (; row < end; row++) {
      float* sums = space_.sums + (int64_t)row * args_.head_dim;
      const float total = space_.state[2 * row + 1];
      if (total == 0) memset(sums, 0, sizeof(float) * args_.head_dim);  // it saw only scores of -inf
      write_row(args_, out_row(row), sums, total);
    }
  }

  const AttendArgs& args_;
  const Item& item_;
  const Item* next_;  // that this thread takes after this one, where it is known
  const Workspace& space_;
  const int group_, per_group_, num_rows_, depth_;
  const int64_t row_bytes_;
};

}  // namespace sg
