#include "cuda_emulation.hpp"

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

struct Fiber {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(kStackBytes);
  bool finished = false;
};

ucontext_t scheduler;
sigjmp_buf outside_array;
Fiber* running = nullptr;
void (*thread_body)(const void*);
const void* thread_arguments;

void enter() {
  thread_body(thread_arguments);
  running->finished = true;
}

void restart(Fiber& fiber) {
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.data();
  fiber.context.uc_stack.ss_size = fiber.stack.size();
  fiber.context.uc_link = &scheduler;
  makecontext(&fiber.context, enter, 0);
  fiber.finished = false;
}

Outcome run_block(std::vector<Fiber>& fibers, std::vector<unsigned>& order, std::mt19937& random) {
  for (Fiber& fiber : fibers) restart(fiber);
  while (true) {
    std::shuffle(order.begin(), order.end(), random);
    std::size_t finished = 0;
    for (const unsigned thread : order) {
      running = &fibers[thread];
      threadIdx = {thread, 0};
      swapcontext(&scheduler, &running->context);
      finished += running->finished;
    }
    if (finished == fibers.size()) return kFinished;
    if (finished != 0) return kDivergentBarrier;
  }
}

Outcome run_grid(const Launch& launch) {
  std::mt19937 random(launch.seed);
  std::vector<Fiber> fibers(launch.threads);
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

void __syncthreads() { swapcontext(&emulation::running->context, &emulation::scheduler); }

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
