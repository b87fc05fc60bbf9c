// Reads through io_uring: one thread has many under way, and pays for one system call a bunch.
#pragma once

#include "read_queue.hpp"

#ifdef SPGNN_LIBURING
#include <liburing.h>

namespace spgnn {

// A ring of the thread that makes it, which alone may use it.
class Ring {
 public:
  explicit Ring(unsigned entries) {
    int answer = -EINVAL;
#ifdef IORING_SETUP_DEFER_TASKRUN
    // Linux 6.1: what has been read is reported when it is asked for, without an interruption.
    answer = io_uring_queue_init(entries, &ring_,
                                 IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN);
#endif
    if (answer == -EINVAL) answer = io_uring_queue_init(entries, &ring_, 0);
    if (answer < 0) throw std::runtime_error(std::strerror(-answer));
  }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  ~Ring() { io_uring_queue_exit(&ring_); }

  // Linux 5.6 is the first that reads without a vector.
  bool reads() {
    const std::unique_ptr<io_uring_probe, decltype(&io_uring_free_probe)> probe(
        io_uring_get_probe_ring(&ring_), io_uring_free_probe);
    return probe && io_uring_opcode_supported(probe.get(), IORING_OP_READ);
  }

  io_uring* operator->() { return &ring_; }
  io_uring* get() { return &ring_; }

 private:
  io_uring ring_;
};

class RingQueue : public ReadQueue {
 public:
  explicit RingQueue(int depth)
      : ring_(static_cast<unsigned>(depth)), slots_(static_cast<std::size_t>(depth)) {
    for (Slot& slot : slots_) free_.push_back(&slot);
  }

  int depth() const override { return static_cast<int>(slots_.size()); }
  int under_way() const override { return static_cast<int>(slots_.size() - free_.size()); }

  void begin(OneRead read) override {
    Slot* slot = free_.back();
    free_.pop_back();
    slot->read = std::move(read);
    slot->way = slot->read.job->read(slot->read.number);
    slot->way.done() ? finish(*slot, "") : ask(*slot);
  }

  void wait() override {
    if (under_way() == 0) return;
    // A few at a time: a call for each costs more than the read, and the rest keeps the disk busy.
    const int together = std::max(1, under_way() / 4);
    const int answer = io_uring_submit_and_wait(ring_.get(), static_cast<unsigned>(together));
    if (answer < 0 && answer != -EINTR && answer != -EAGAIN && answer != -EBUSY) {
      throw std::runtime_error(std::strerror(-answer));
    }
    unsigned head = 0, count = 0;
    io_uring_cqe* answered = nullptr;
    io_uring_for_each_cqe(ring_.get(), head, answered) {
      ++count;
      hand_on(*static_cast<Slot*>(io_uring_cqe_get_data(answered)), answered->res);
    }
    io_uring_cq_advance(ring_.get(), count);
  }

  std::vector<OneRead> unfinished() const override {
    std::vector<OneRead> found;
    for (const Slot& slot : slots_) {
      if (slot.read.job) found.push_back(slot.read);
    }
    return found;
  }

 private:
  struct Slot {
    OneRead read;
    FileRead way;
    AlignedBuffer buffer;
  };

  // As many entries as slots, so there is one.
  void ask(Slot& slot) {
    io_uring_sqe* entry = io_uring_get_sqe(ring_.get());
    io_uring_prep_read(entry, slot.way.handle(), slot.buffer.data + slot.way.got(),
                       static_cast<unsigned>(slot.way.bytes()),
                       static_cast<u64>(slot.way.offset()));
    io_uring_sqe_set_data(entry, &slot);
  }

  void hand_on(Slot& slot, int answer) {
    std::string wrong;
    try {
      slot.way.take(answer);
      if (!slot.way.done()) return ask(slot);
      slot.read.job->use(slot.read.number, slot.buffer.data);
    } catch (const std::exception& error) { wrong = error.what(); }
    finish(slot, wrong);
  }

  void finish(Slot& slot, const std::string& wrong) {
    slot.read.job->finish(wrong);
    slot.read = {};
    free_.push_back(&slot);
  }

  Ring ring_;
  std::vector<Slot> slots_;
  std::vector<Slot*> free_;
};

// Why there is no io_uring here; empty if there is.
inline std::string ring_refusal() {
  try {
    return Ring(1).reads() ? "" : "the kernel is older than 5.6";
  } catch (const std::exception& error) {
    return std::string("the kernel refuses io_uring: ") + error.what();
  }
}

inline std::unique_ptr<ReadQueue> make_ring_queue(int depth) {
  return std::make_unique<RingQueue>(depth);
}

}  // namespace spgnn

#else

namespace spgnn {

inline std::string ring_refusal() { return "built without liburing"; }

inline std::unique_ptr<ReadQueue> make_ring_queue(int) { throw std::runtime_error(ring_refusal()); }

}  // namespace spgnn

#endif
