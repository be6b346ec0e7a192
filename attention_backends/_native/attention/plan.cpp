// Cutting a step's attention into items of work, and choosing which of them are split over their keys.
//
// A row's result is the sum over its chunks of keys, in order, wherever they are computed: how the work is cut never
// changes a bit of it.
#include <algorithm>

#include "args.h"
#include "stepgraph_kernel.h"

namespace {

using namespace sg;

constexpr int kItemsPerThread = 4;  // aimed at, so that threads end together
constexpr int kSmallTileRows = 64;  // below, packing would cost too much
constexpr int kPackingRows = 16;    // reading a key costs about as much as this many query rows

int64_t cost(const Item& item, int group) {
  const int end = std::min(item.position + item.num_tokens, item.end_chunk * kChunk);
  return (int64_t)(end - item.chunk * kChunk) * (item.num_tokens * group + kPackingRows);
}

int first_chunk(int position, int window) {
  return window > 0 ? std::max(0, position - window + 1) / kChunk : 0;
}

struct Planner {
  const PlanArgs& args;
  Plan& plan;
  int64_t total = 0;
  int partial_rows = 0;
  int tile_tokens = 1;

  // Tiles are as large as can be, since packed keys serve a whole tile, but not so few that threads have none. What is
  // cut further for that is less than 2 * kItemsPerThread items a thread, for which a plan has room.
  void choose_tile() {
    const int enough = args.num_threads > 1 ? args.num_threads * kItemsPerThread : 1;
    for (int rows = kTileRows; rows >= kSmallTileRows; rows /= 2) {
      tile_tokens = std::max(1, rows / args.group);
      int items = 0;
      for (int r = 0; r < args.num_reqs; r++) items += num_tiles(r) * args.num_kv_heads;
      if (items >= enough) return;
    }
  }

  int num_tokens(int r) const { return args.query_start_loc[r + 1] - args.query_start_loc[r]; }

  int num_tiles(int r) const { return (num_tokens(r) + tile_tokens - 1) / tile_tokens; }

  bool cut_requests() {
    for (int r = 0; r < args.num_reqs; r++) {
      const int start = args.query_start_loc[r], end = args.query_start_loc[r + 1], tiles = num_tiles(r);
      const int computed = args.seq_lens[r] - (end - start);
      const int tile = tiles == 0 ? 1 : (end - start + tiles - 1) / tiles;
      for (int token = start; token < end; token += tile) {
        Item item = {r, 0, token, std::min(tile, end - token), computed + token - start, 0, 0, -1};
        item.chunk = first_chunk(item.position, args.window);
        item.end_chunk = (item.position + item.num_tokens - 1) / kChunk + 1;
        if (plan.max_items - plan.num_items < args.num_kv_heads) return false;
        for (item.kv_head = 0; item.kv_head < args.num_kv_heads; item.kv_head++) {
          plan.items[plan.num_items++] = item;
          total += cost(item, args.group);
        }
      }
    }
    return true;
  }

  // Items above a fair share are split into runs of chunks, as long as there is room for their results.
  void split_items() {
    const int64_t share = std::max<int64_t>(1, total / ((int64_t)args.num_threads * kItemsPerThread));
    const int whole = plan.num_items;
    for (int i = 0; i < whole; i++) {
      const Item item = plan.items[i];
      const int chunks = item.end_chunk - item.chunk;
      const int parts = (int)std::min<int64_t>(chunks, (cost(item, args.group) + share - 1) / share);
      const int rows = chunks * item.num_tokens * args.group;
      if (parts < 2 || plan.num_items + parts - 1 > plan.max_items || plan.num_merges == plan.max_merges ||
          partial_rows + rows > plan.max_partial_rows) {
        continue;
      }
      plan.merges[plan.num_merges++] = {item.kv_head, item.token, item.num_tokens, partial_rows, chunks};
      for (int part = 0; part < parts; part++) {
        Item piece = item;
        piece.chunk = item.chunk + (int)((int64_t)chunks * part / parts);
        piece.end_chunk = item.chunk + (int)((int64_t)chunks * (part + 1) / parts);
        piece.partial = partial_rows + (piece.chunk - item.chunk) * item.num_tokens * args.group;
        plan.items[part == 0 ? i : plan.num_items++] = piece;
      }
      partial_rows += rows;
    }
  }

  // The largest requests first, and of each the largest items, so that the last ones are small; the items that read
  // the same keys together, so that these are in a cache.
  void sort_items() {
    std::sort(plan.items, plan.items + plan.num_items, [this](const Item& a, const Item& b) {
      if (a.request != b.request) {
        const int64_t cost_a = cost_of_request(a.request), cost_b = cost_of_request(b.request);
        return cost_a != cost_b ? cost_a > cost_b : a.request < b.request;
      }
      if (a.kv_head != b.kv_head) return a.kv_head < b.kv_head;
      const int64_t cost_a = cost(a, args.group), cost_b = cost(b, args.group);
      if (cost_a != cost_b) return cost_a > cost_b;
      return a.token != b.token ? a.token < b.token : a.chunk < b.chunk;
    });
  }

  int64_t cost_of_request(int r) const {
    return (int64_t)args.seq_lens[r] * (std::min(num_tokens(r), tile_tokens) * args.group + kPackingRows);
  }
};

}  // namespace

// 1, or 0 where the plan has no room for the step. Takes one thread, and is no kernel.
extern "C" STEPGRAPH_EXPORT int stepgraph_plan_attention(const void* untyped) {
  const PlanArgs& args = *static_cast<const PlanArgs*>(untyped);
  Plan& plan = *args.plan;
  plan.num_items = plan.num_merges = 0;
  plan.num_tokens = args.query_start_loc[args.num_reqs];
  Planner planner = {args, plan};
  planner.choose_tile();
  if (!planner.cut_requests()) return 0;
  planner.split_items();
  planner.sort_items();
  return 1;
}
