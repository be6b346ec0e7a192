// Runs lists of kernels on the OpenMP pool that is in the process already (torch's).
#include <omp.h>
#include <sched.h>

#include "stepgraph_kernel.h"

namespace {

constexpr int kSpins = 4096;  // before giving the core away: other processes may need it

inline void pause_core() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

struct Shared {
  alignas(64) int arrived = 0;
  alignas(64) int generation = 0;
  alignas(64) int64_t next_item[2] = {0, 0};
};

void barrier(Team* team) {
  Shared* shared = static_cast<Shared*>(team->shared);
  const int generation = __atomic_load_n(&shared->generation, __ATOMIC_RELAXED);
  if (__atomic_add_fetch(&shared->arrived, 1, __ATOMIC_ACQ_REL) == team->num_threads) {
    __atomic_store_n(&shared->arrived, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&shared->generation, generation + 1, __ATOMIC_RELEASE);
    return;
  }
  int spins = 0;
  while (__atomic_load_n(&shared->generation, __ATOMIC_ACQUIRE) == generation) {
    if (++spins < kSpins) {
      pause_core();
    } else {
      sched_yield();
    }
  }
}

void no_barrier(Team*) {}

void run_as(Team* team, Shared* shared, const Step* steps, int count) {
  for (int i = 0; i < count; i++) {
    // The counter of the step before is free: all threads have passed that step's barrier.
    if (team->thread == 0) {
      __atomic_store_n(&shared->next_item[(i + 1) & 1], 0, __ATOMIC_RELAXED);
    }
    team->next_item = &shared->next_item[i & 1];
    steps[i].kernel(steps[i].args, team);
    team->barrier(team);
  }
}

}  // namespace

extern "C" STEPGRAPH_EXPORT void stepgraph_run(const Step* steps, int count, int num_threads) {
  Shared shared;
  if (num_threads <= 1) {
    Team team = {0, 1, no_barrier, nullptr, &shared};
    run_as(&team, &shared, steps, count);
    return;
  }
#pragma omp parallel num_threads(num_threads)
  {
    Team team = {omp_get_thread_num(), omp_get_num_threads(), barrier, nullptr, &shared};
    run_as(&team, &shared, steps, count);
  }
}
