// The threads that read, a process's own.
#pragma once

#include <unistd.h>

#include "read_queue.hpp"
#include "ring_queue.hpp"

namespace spgnn {

// Through io_uring where wanted and there each thread has a queue of many reads; else one at a
// time, and the number of threads is the depth that the disk sees.
class ReadingPool {
 public:
  // The process's pool, never destroyed; a forked process gets one of its own.
  static ReadingPool& of_process(bool ring) {
    static std::atomic<ReadingPool*> pools[2];
    std::atomic<ReadingPool*>& current = pools[ring ? 1 : 0];
    ReadingPool* pool = current.load();
    while (!pool || pool->process_ != getpid()) {
      auto* fresh = new ReadingPool(ring);
      if (current.compare_exchange_strong(pool, fresh)) return *fresh;
      delete fresh;
    }
    return *pool;
  }

  // Queues a job, at least `depth` of whose reads will be under way at once.
  void submit(std::shared_ptr<ReadingJob> job, int depth) {
    std::scoped_lock locked(lock_);
    grow(depth);
    if (depth_ == 0) throw std::runtime_error("the system starts no thread to read with");
    jobs_.push_back(std::move(job));
    changed_.notify_all();
  }

 private:
  // Of one thread, which also copies. Two of half of it read no more, and take more processor.
  static constexpr int kRingDepth = 128;

  explicit ReadingPool(bool ring) : ring_(ring && ring_refusal().empty()) {}

  void grow(int depth) {
    wanted_ = std::max(wanted_, depth);
    while (depth_ < wanted_) {
      const int more = ring_ ? std::min(wanted_ - depth_, kRingDepth) : 1;
      try {
        std::thread([this, more, ring = ring_] { serve(more, ring); }).detach();
      } catch (const std::system_error&) { return; }
      depth_ += more;
    }
  }

  void serve(int depth, bool ring) {
    std::unique_ptr<ReadQueue> queue = ring ? ring_or_threads(depth) : blocking();
    for (;;) {
      try {
        feed(*queue);
      } catch (const std::exception&) {
        // The kernel has come to refuse: filters of system calls may be set up at any time. What is
        // under way is read anew. Nobody may have the queue's buffers, which may yet be written.
        const std::vector<OneRead> unfinished = queue->unfinished();
        queue.release();
        queue = without_ring(depth);
        for (const OneRead& read : unfinished) queue->begin(read);
      }
    }
  }

  // Reads, for ever.
  void feed(ReadQueue& queue) {
    std::shared_ptr<ReadingJob> job;
    for (;;) {
      const i64 number = job ? job->take() : ReadingJob::kNone;
      if (number == ReadingJob::kNone) {
        job.reset();  // it keeps a file open
        job = next_job(queue.under_way() == 0);
        if (!job) queue.wait();
      } else if (job->given_up()) {
        job->finish("");
      } else {
        queue.begin({job, number});
        if (queue.under_way() == queue.depth()) queue.wait();
      }
    }
  }

  // One that has reads to begin, perhaps none; waits for one if nothing else is to be done.
  std::shared_ptr<ReadingJob> next_job(bool idle) {
    std::unique_lock locked(lock_);
    for (;;) {
      while (!jobs_.empty() && !jobs_.front()->waiting()) jobs_.pop_front();
      if (!jobs_.empty()) return jobs_.front();
      if (!idle) return nullptr;
      changed_.wait(locked);
    }
  }

  static std::unique_ptr<ReadQueue> blocking() { return std::make_unique<BlockingQueue>(); }

  std::unique_ptr<ReadQueue> ring_or_threads(int depth) {
    try {
      return make_ring_queue(depth);
    } catch (const std::exception&) { return without_ring(depth); }
  }

  // For a thread that has lost its ring; others are started for the rest of its depth.
  std::unique_ptr<ReadQueue> without_ring(int depth) {
    std::scoped_lock locked(lock_);
    ring_ = false;
    depth_ -= depth - 1;
    grow(wanted_);
    return blocking();
  }

  const pid_t process_ = getpid();
  std::mutex lock_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<ReadingJob>> jobs_;
  bool ring_;
  int wanted_ = 0, depth_ = 0;  // asked for at most, and there is
};

}  // namespace spgnn
