#include "emulation.hpp"

#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

Position threadIdx, blockIdx;

namespace emulation {
namespace {

constexpr std::size_t kStackBytes = 64 * 1024;

enum State { kRunning, kAtBarrier, kAmongMates, kDone };

// Exchanges with some threads of the warp: how many so far, and the last two values.
struct Exchanges {
  unsigned mates, count = 0;
  std::uint64_t shown[2] = {};
};

struct Fiber {
  ucontext_t context;  // its beginning
  jmp_buf place;       // where it goes on
  bool begun = false;
  std::vector<char> stack = std::vector<char>(kStackBytes);
  State state = kRunning;
  std::vector<Exchanges> exchanges;
  unsigned mates = 0;  // for whom it waits

  Exchanges& among(unsigned some) {
    for (Exchanges& known : exchanges) {
      if (known.mates == some) return known;
    }
    return exchanges.emplace_back(Exchanges{some});
  }
};

ucontext_t scheduler;
jmp_buf scheduler_place;
sigjmp_buf outside_array;
std::vector<Fiber>* block = nullptr;
Fiber* running = nullptr;
void (*thread_body)(const void*);
const void* thread_arguments;

void enter() {
  thread_body(thread_arguments);
  running->state = kDone;
  _longjmp(scheduler_place, 1);
}

// Contexts are for beginning only: changing from one to another calls the system, to set signals.
void yield(State state) {
  running->state = state;
  if (_setjmp(running->place) == 0) _longjmp(scheduler_place, 1);
}

void resume(Fiber& fiber) {
  if (_setjmp(scheduler_place) != 0) return;
  running = &fiber;
  if (fiber.begun) _longjmp(fiber.place, 1);
  fiber.begun = true;
  swapcontext(&scheduler, &fiber.context);
}

void restart(Fiber& fiber) {
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.data();
  fiber.context.uc_stack.ss_size = fiber.stack.size();
  makecontext(&fiber.context, enter, 0);
  fiber.state = kRunning;
  fiber.begun = false;
  fiber.exchanges.clear();
}

// Whether all of a thread's mates have come as far as it has.
bool mates_are_here(unsigned thread) {
  const unsigned mates = (*block)[thread].mates, count = (*block)[thread].among(mates).count;
  for (unsigned lane = 0; lane < 32; ++lane) {
    if (!(mates >> lane & 1)) continue;
    if ((*block)[thread / 32 * 32 + lane].among(mates).count < count) return false;
  }
  return true;
}

Outcome run_block(std::vector<Fiber>& fibers, std::vector<unsigned>& order, std::mt19937& random) {
  for (Fiber& fiber : fibers) restart(fiber);
  block = &fibers;
  while (true) {
    std::shuffle(order.begin(), order.end(), random);
    bool moved = false;
    for (const unsigned thread : order) {
      running = &fibers[thread];
      if (running->state == kAmongMates && mates_are_here(thread)) running->state = kRunning;
      if (running->state != kRunning) continue;
      threadIdx = {thread, 0};
      resume(*running);
      moved = true;
    }
    const auto count = [&](State state) {
      return std::count_if(fibers.begin(), fibers.end(),
                           [&](const Fiber& fiber) { return fiber.state == state; });
    };
    const auto all = static_cast<std::ptrdiff_t>(fibers.size());
    if (count(kDone) == all) return kFinished;
    if (count(kAtBarrier) == all) {
      for (Fiber& fiber : fibers) fiber.state = kRunning;
    } else if (!moved) {
      return kDivergentBarrier;
    }
  }
}

Outcome run_grid(const Launch& launch) {
  std::mt19937 random(launch.seed);
  static std::vector<Fiber> fibers;  // kept, for new stacks are new pages
  fibers.resize(launch.threads);
  std::vector<unsigned> order(launch.threads);
  std::iota(order.begin(), order.end(), 0u);
  std::vector<unsigned> blocks(launch.grid_x * launch.grid_y);
  std::iota(blocks.begin(), blocks.end(), 0u);
  std::shuffle(blocks.begin(), blocks.end(), random);
  for (const unsigned block : blocks) {
    blockIdx = {block % launch.grid_x, block / launch.grid_x};
    std::memset(launch.shared_begin, 0xff, launch.shared_end - launch.shared_begin);
    const Outcome outcome = run_block(fibers, order, random);
    if (outcome != kFinished) return outcome;
  }
  return kFinished;
}

void on_fault(int) { siglongjmp(outside_array, 1); }

// Faults of a kernel become an outcome while this lives.
class FaultGuard {
 public:
  FaultGuard() {
    struct sigaction action = {};
    action.sa_handler = on_fault;
    sigaction(SIGSEGV, &action, &before_);
  }
  ~FaultGuard() { sigaction(SIGSEGV, &before_, nullptr); }
  FaultGuard(const FaultGuard&) = delete;
  FaultGuard& operator=(const FaultGuard&) = delete;

 private:
  struct sigaction before_;
};

}  // namespace

Outcome run(const Launch& launch, void (*thread)(const void*), const void* arguments) {
  thread_body = thread;
  thread_arguments = arguments;
  const FaultGuard guard;
  return sigsetjmp(outside_array, 1) == 0 ? run_grid(launch) : kOutsideArray;
}

}  // namespace emulation

void __syncthreads() { emulation::yield(emulation::kAtBarrier); }

std::uint64_t emulation::exchange(unsigned mates, std::uint64_t shown, unsigned offset) {
  const unsigned thread = threadIdx.x, other = thread ^ offset;
  Fiber& fiber = (*block)[thread];
  Exchanges& mine = fiber.among(mates);
  const unsigned place = ++mine.count % 2;
  fiber.mates = mates;
  mine.shown[place] = shown;
  const bool right = mates >> thread % 32 & 1 && mates >> other % 32 & 1;
  do yield(kAmongMates);
  while (!right);  // for ever: it is not among its mates
  return (*block)[other].among(mates).shown[place];
}

// Memory between two pages that nothing may touch; it ends where the second one begins.
extern "C" char* allocate_guarded(std::size_t bytes) {
  const std::size_t page = sysconf(_SC_PAGESIZE);
  const std::size_t inside = (bytes + page - 1) / page * page;
  void* const whole =
      mmap(nullptr, inside + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (whole == MAP_FAILED) return nullptr;
  char* const begin = static_cast<char*>(whole) + page;
  if (inside > 0) mprotect(begin, inside, PROT_READ | PROT_WRITE);
  return begin + inside - bytes;
}

extern "C" void free_guarded(char* memory, std::size_t bytes) {
  const std::size_t page = sysconf(_SC_PAGESIZE);
  const std::size_t inside = (bytes + page - 1) / page * page;
  munmap(memory + bytes - inside - page, inside + 2 * page);
}
