// Reads that belong together, and what carries them out: the interface of threads and of io_uring.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "data_file.hpp"

namespace spgnn {

// Every read of [0, reads) is taken once, by any thread, and told when it is over. The first that
// fails is what the job says; those that have not begun then never do.
class ReadingJob {
 public:
  static constexpr std::int64_t kNone = -1;

  virtual ~ReadingJob() = default;

  virtual FileRead read(std::int64_t number) const = 0;
  // The bytes of a read are there.
  virtual void use(std::int64_t number, const char* buffer) = 0;

  // The number of a read that nobody has taken, or kNone.
  std::int64_t take() {
    const std::int64_t number = next_.fetch_add(1);
    return number < reads_ ? number : kNone;
  }
  bool waiting() const { return next_ < reads_; }

  // A read is over; `wrong` is empty if nothing is.
  void finish(const std::string& wrong) {
    if (wrong.empty() && left_.fetch_sub(1) != 1) return;
    std::scoped_lock locked(lock_);
    if (!wrong.empty()) {
      given_up_ = true;
      if (error_.empty()) error_ = wrong;
      left_.fetch_sub(1);
    }
    if (left_ <= 0) changed_.notify_all();
  }

  bool given_up() const { return given_up_; }
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
  void expect(std::int64_t reads) { reads_ = left_ = reads; }

 private:
  std::int64_t reads_ = 0;
  std::atomic<std::int64_t> next_{0}, left_{0};
  std::atomic<bool> given_up_{false};
  std::mutex lock_;
  std::condition_variable changed_;
  std::string error_;
};

// A read of a job.
struct OneRead {
  std::shared_ptr<ReadingJob> job;
  std::int64_t number = ReadingJob::kNone;
};

// Carries reads out, for the one thread that made it.
class ReadQueue {
 public:
  virtual ~ReadQueue() = default;

  // Reads that may be under way at once, and those that are.
  virtual int depth() const = 0;
  virtual int under_way() const = 0;

  // Begins a read; there must be room for it. Its job is told when it is over.
  virtual void begin(OneRead read) = 0;

  // Returns when reads may be over. Throws if the system will have no more to do with any of them.
  virtual void wait() = 0;

  // Reads that were begun and are not over.
  virtual std::vector<OneRead> unfinished() const = 0;
};

// Where the thread waits for each read.
class BlockingQueue : public ReadQueue {
 public:
  int depth() const override { return 1; }
  int under_way() const override { return 0; }

  void begin(OneRead read) override {
    std::string wrong;
    try {
      FileRead way = read.job->read(read.number);
      while (!way.done()) {
        const ssize_t got =
            pread(way.handle(), buffer_.data + way.got(), way.bytes(), way.offset());
        way.take(got < 0 ? -errno : got);
      }
      read.job->use(read.number, buffer_.data);
    } catch (const std::exception& error) {
      wrong = error.what();
    }
    read.job->finish(wrong);
  }

  void wait() override {}
  std::vector<OneRead> unfinished() const override { return {}; }

 private:
  AlignedBuffer buffer_;
};

}  // namespace spgnn
