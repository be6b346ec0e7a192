/* What every native kernel of stepgraph is, and how a list of them is run.
 *
 * All threads of a team call a kernel with the same arguments. A kernel allocates nothing, starts no
 * thread, and shares its work out by `team_range` (equal parts) or `team_next` (who is free takes the
 * next item). A kernel with several phases calls `team_barrier` between them; after the last one the
 * runner does.
 */
#ifndef STEPGRAPH_KERNEL_H
#define STEPGRAPH_KERNEL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct Team {
  int thread; /* 0 .. num_threads - 1 */
  int num_threads;
  void (*barrier)(struct Team*);
  int64_t* next_item; /* shared by the team; 0 when a kernel starts */
  void* shared;       /* the runner's */
} Team;

typedef void (*Kernel)(const void* args, Team* team);

typedef struct Step {
  Kernel kernel;
  const void* args;
} Step;

/* Run `count` steps in order, in one parallel region, with a barrier after each. */
void stepgraph_run(const Step* steps, int count, int num_threads);

static inline void team_barrier(Team* team) { team->barrier(team); }

/* This thread's part [*begin, *end) of `count` items, in multiples of `grain` but for the last. */
static inline void team_range(const Team* team, int64_t count, int64_t grain, int64_t* begin,
                              int64_t* end) {
  const int64_t grains = (count + grain - 1) / grain;
  const int64_t each = grains / team->num_threads, more = grains % team->num_threads;
  const int64_t t = team->thread;
  const int64_t first = t * each + (t < more ? t : more);
  *begin = first * grain < count ? first * grain : count;
  const int64_t last = (first + each + (t < more)) * grain;
  *end = last < count ? last : count;
}

/* The next item that nobody has taken, `count` or more when there is none. One use a kernel. */
static inline int64_t team_next(Team* team) {
  return __atomic_fetch_add(team->next_item, 1, __ATOMIC_RELAXED);
}

#ifdef __cplusplus
}
#endif

#define STEPGRAPH_EXPORT __attribute__((visibility("default")))

#endif
