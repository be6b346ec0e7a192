// Attention of a ragged batch over the paged cache: the items of a plan, shared out to threads.
#include "stepgraph_kernel.h"
#include "tile.h"

namespace {

using namespace sg;

constexpr int kManyItems = 8;  // for each thread

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
  const int64_t token = merge.token + row / group, head = merge.kv_head * group + row % group;
  char* out = (char*)args.out + element_bytes(args.dtype) * (token * args.out_token + head * args.out_head);
  write_row(args, out, sums, state[1]);
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

template <class Path>
void run_item(const AttendArgs& args, const Item& item, const Item* next, const Workspace& space) {
#if defined(__AVX512F__)
  if (FromCache::serves(args, item.num_tokens * (args.num_q_heads / args.num_kv_heads))) {
    return Tile<FromCache>(args, item, next, space).run();
  }
#endif
  Tile<Path>(args, item, next, space).run();
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
    run_item<Path>(args, plan.items[i], upcoming, space);
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
    run_items<Path>(args, team, space);
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
#if defined(STEPGRAPH_HAS_TILES)
  if (args.dtype == kBfloat16 && args.kv_dtype == kBfloat16) {
    open_tiles();
    attend<InTiles>(args, team);
    return close_tiles();
  }
#endif
  attend<InFloats>(args, team);
}

extern "C" STEPGRAPH_EXPORT int64_t stepgraph_attention_workspace(int head_dim) {
  return Workspace::num_bytes(head_dim);
}
