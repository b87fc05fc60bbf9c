// Threads that read, a process's own: each waits for one read at a time, so their number is the
// depth of the queue that the disk sees.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>

namespace spgnn {

constexpr std::int64_t kBlock = 4096;  // buffers lie at multiples of it
constexpr std::int64_t kLongestRead = 1
                                      << 18;  // bytes; more gains nothing, and leaves threads idle

struct AlignedBuffer {
  AlignedBuffer()
      : data(static_cast<char*>(std::aligned_alloc(kBlock, kLongestRead + 2 * kBlock))) {
    if (!data) throw std::bad_alloc();
  }
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;
  ~AlignedBuffer() { std::free(data); }
  char* data;
};

// Reads that belong together: read(i, buffer) is called once for every i in [0, reads), on any
// thread. The first that throws is what `wait` tells; those that have not begun then never do.
class ReadingJob {
 public:
  virtual ~ReadingJob() = default;

  // Does one read that nobody has begun; false if there is none.
  bool work(char* buffer) {
    const std::int64_t read_number = next_.fetch_add(1);
    if (read_number >= reads_) return false;
    std::string said;
    if (!given_up_) {
      try {
        read(read_number, buffer);
      } catch (const std::exception& error) {
        given_up_ = true;
        said = error.what();
      }
    }
    if (!said.empty() || left_.fetch_sub(1) == 1) finish_one(said);
    return true;
  }

  bool waiting() const { return next_ < reads_; }
  void give_up() { given_up_ = true; }

  // Whether all is done, after at most so many milliseconds.
  bool done_within(int milliseconds) {
    std::unique_lock locked(lock_);
    return changed_.wait_for(locked, std::chrono::milliseconds(milliseconds),
                             [&] { return left_ <= 0; });
  }
  std::string error() {
    std::scoped_lock locked(lock_);
    return error_;
  }

 protected:
  virtual void read(std::int64_t number, char* buffer) = 0;
  void expect(std::int64_t reads) { reads_ = left_ = reads; }

 private:
  void finish_one(const std::string& said) {
    std::scoped_lock locked(lock_);
    if (!said.empty()) {
      if (error_.empty()) error_ = said;
      left_.fetch_sub(1);
    }
    if (left_ <= 0) changed_.notify_all();
  }

  std::int64_t reads_ = 0;
  std::atomic<std::int64_t> next_{0}, left_{0};
  std::atomic<bool> given_up_{false};
  std::mutex lock_;
  std::condition_variable changed_;
  std::string error_;
};

class ReadingPool {
 public:
  // The process's pool. It is never destroyed: its threads end with the process. A forked process
  // has none of its parent's threads, so it gets a pool of its own.
  static ReadingPool& of_process() {
    static std::atomic<ReadingPool*> current{nullptr};
    ReadingPool* pool = current.load();
    while (!pool || pool->process_ != getpid()) {
      auto* fresh = new ReadingPool;
      if (current.compare_exchange_strong(pool, fresh)) return *fresh;
      delete fresh;
    }
    return *pool;
  }

  // Queues a job on at least `depth` threads.
  void submit(std::shared_ptr<ReadingJob> job, int depth) {
    std::scoped_lock locked(lock_);
    for (; threads_ < depth; ++threads_) {
      try {
        std::thread([this] { serve(); }).detach();
      } catch (const std::system_error&) {
        if (threads_ == 0) throw std::runtime_error("the system starts no thread to read with");
        break;
      }
    }
    jobs_.push_back(std::move(job));
    changed_.notify_all();
  }

 private:
  void serve() {
    AlignedBuffer buffer;
    std::unique_lock locked(lock_);
    for (;;) {
      while (!jobs_.empty() && !jobs_.front()->waiting()) jobs_.pop_front();
      if (jobs_.empty()) {
        changed_.wait(locked);
        continue;
      }
      const std::shared_ptr<ReadingJob> job = jobs_.front();
      locked.unlock();
      while (job->work(buffer.data)) {
      }
      locked.lock();
    }
  }

  const pid_t process_ = getpid();
  std::mutex lock_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<ReadingJob>> jobs_;
  int threads_ = 0;
};

}  // namespace spgnn
