// Exchange through shared memory: pages that peers read, slots that say what lies where.
#pragma once

#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "std.hpp"

namespace spgnn {

// Which stretches of memory are taken; the lowest free is given, to touch few pages.
class Arena {
 public:
  Arena(std::size_t first, std::size_t last) : end_(last), top_(first) {
    free_[first] = last - first;
  }

  // 0 if there is no room.
  std::size_t take(std::size_t length) {
    length = rounded(length);
    for (auto stretch = free_.begin(); stretch != free_.end(); ++stretch) {
      const auto [first, size] = *stretch;
      if (size < length) continue;
      free_.erase(stretch);
      if (size > length) free_[first + length] = size - length;
      taken_ += length;
      if (first + length > top_) top_ = first + length;
      return first;
    }
    return 0;
  }

  void release(std::size_t first, std::size_t length) {
    length = rounded(length);
    taken_ -= length;
    auto next = free_.lower_bound(first);
    if (next != free_.end() && first + length == next->first) {
      length += next->second;
      next = free_.erase(next);
    }
    if (next != free_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == first) {
        before->second += length;
        return;
      }
    }
    free_[first] = length;
  }

  std::size_t taken() const { return taken_; }

  // Calls `body(first, length)` for stretches that are free and may have been touched.
  template <class Body> void each_free(Body body) {
    for (const auto& [first, size] : free_) {
      const std::size_t last = first + size < top_ ? first + size : top_;
      if (first < last) body(first, last - first);
    }
    if (!free_.empty() && std::prev(free_.end())->first + std::prev(free_.end())->second == end_) {
      top_ = std::prev(free_.end())->first;
    }
  }

 private:
  static std::size_t rounded(std::size_t length) { return (length + 63) / 64 * 64; }

  std::map<std::size_t, std::size_t> free_;
  std::size_t end_;
  std::size_t top_;
  std::size_t taken_ = 0;
};

// What every rank's shared memory begins with, and what it says there of each operation.

constexpr std::size_t kChannels = 4096;  // groups of ranks that a rank may be in
constexpr std::size_t kSlots = 64;       // operations of a group that nobody has to wait for yet

using Number = u64;

// One operation of this rank in a group. Its number says that the rest can be read.
struct Slot {
  std::atomic<Number> number;  // 0: never used
  u64 record;                  // where
};

struct ChannelTable {
  std::atomic<u64> key;
  Slot slots[kSlots];
};

struct Header {
  u64 token;
  // Rises when there is something to look at. Whoever sleeps until then counts himself.
  std::atomic<u32> bell;
  std::atomic<u32> sleepers;
  std::atomic<u32> channels;
  ChannelTable tables[kChannels];
};

// What a rank has for one of its peers.
struct Part {
  u64 first;
  u64 length;
};

// What a rank has for its peers; one part for each rank of the group follows.
struct Record {
  std::atomic<u32> left;  // that have not read theirs
  u32 kind;

  Part* parts() { return reinterpret_cast<Part*>(this + 1); }
};

static_assert(std::atomic<Number>::is_always_lock_free);
static_assert(std::atomic<u32>::is_always_lock_free);
static_assert(sizeof(std::atomic<u32>) == 4, "futexes are of 32 bits");

constexpr std::size_t kArena = (sizeof(Header) + 4095) / 4096 * 4096;

// Memory that other processes map as well; nameless, so it is gone with the last that has it.
class SharedPages {
 public:
  SharedPages() = default;

  // Of this process. Pages take memory once they are written; the length only has to be enough.
  static SharedPages make(std::size_t length) {
    const int file = memfd_create("spgnn", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, static_cast<off_t>(length)) != 0) {
      if (file >= 0) close(file);
      return {};
    }
    return SharedPages(file, length);
  }

  // Of another process, in which the file has that number. Empty if the system does not allow it.
  static SharedPages of(long process, int number, std::size_t length) {
    const std::string path = "/proc/" + std::to_string(process) + "/fd/" + std::to_string(number);
    const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
    return file < 0 ? SharedPages() : SharedPages(file, length);
  }

  SharedPages(SharedPages&& other) noexcept { *this = std::move(other); }
  SharedPages& operator=(SharedPages&& other) noexcept {
    std::swap(file_, other.file_);
    std::swap(data_, other.data_);
    std::swap(length_, other.length_);
    return *this;
  }
  ~SharedPages() {
    if (data_ != nullptr) munmap(data_, length_);
    if (file_ >= 0) close(file_);
  }

  explicit operator bool() const { return data_ != nullptr; }
  std::byte* data() const { return static_cast<std::byte*>(data_); }
  int file() const { return file_; }

  // Let the system have the memory of what nobody will read again.
  void give_back(std::size_t first, std::size_t length) {
    fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(first),
              static_cast<off_t>(length));
  }

 private:
  SharedPages(int file, std::size_t length) : file_(file), length_(length) {
    void* data = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    if (data != MAP_FAILED) data_ = data;
  }

  int file_ = -1;
  void* data_ = nullptr;
  std::size_t length_ = 0;
};

// Bytes for each rank of a group; those of one follow those of the rank before.
struct Stretches {
  std::byte* data;
  const i64* counts;
  std::size_t unit;  // bytes of one

  std::size_t length(std::size_t rank) const {
    return static_cast<std::size_t>(counts[rank]) * unit;
  }
};

// An operation that this rank has begun: what it still has to read.
struct Operation {
  struct Source {
    std::size_t member;
    std::byte* to;
    std::size_t length;
  };

  int channel;
  Number number;
  u32 kind;
  std::vector<Source> sources;
  bool followed;  // by something that must be done once it is done
  bool mismatched = false;

  bool done() const { return sources.empty(); }
};

// A rank's own memory, which its peers read, and theirs. A rank copies what it has for others into
// its own, says where in a slot, and rings their bells; it copies what they have for it out of
// theirs when it waits for anything. No thread works behind anybody's back.
class Endpoint {
 public:
  Endpoint(std::size_t span, u64 token, int ranks, int rank, bool spins)
      : own_(SharedPages::make(span)), peers_(static_cast<std::size_t>(ranks)), rank_(rank),
        span_(span), spins_(spins), arena_(kArena, span) {
    if (!own_) throw std::runtime_error("no shared memory");
    header(rank_).token = token;
  }

  int file() const { return own_.file(); }

  // Whether the memory of a peer can be had.
  bool meet(int rank, long process, int file, u64 token) {
    auto pages = SharedPages::of(process, file, span_);
    if (!pages || reinterpret_cast<Header*>(pages.data())->token != token) return false;
    peers_[static_cast<std::size_t>(rank)] = std::move(pages);
    return true;
  }

  // A group of ranks; `members` are their numbers in the job. Peers may come later, or have come.
  int open(u64 key, std::vector<int> members, std::size_t self) {
    const std::lock_guard lock(mutex_);
    auto& own = header(rank_);
    const u32 place = own.channels.load();
    if (place == kChannels) throw std::runtime_error("too many groups of ranks");
    own.tables[place].key.store(key);
    own.channels.store(place + 1);
    const std::size_t size = members.size();
    channels_.push_back({key, std::move(members), self, place, 1, std::vector<int>(size, -1),
                         std::vector<u64>(kSlots, 0)});
    return static_cast<int>(channels_.size() - 1);
  }

  // The numbers of the next operations of a group; returns the first.
  Number reserve(int channel, Number count) {
    const std::lock_guard lock(mutex_);
    auto& numbers = channels_[static_cast<std::size_t>(channel)].next;
    return (numbers += count) - count;
  }

  // Post what is sent, and take note of what will be read. With `same`, everyone with a length
  // gets the same bytes. Nothing is done, and nothing returned, while there is no room.
  std::shared_ptr<Operation> begin(int channel, Number number, u32 kind, const Stretches& send,
                                   bool same, const Stretches& receive, bool followed,
                                   std::size_t budget) {
    const std::lock_guard lock(mutex_);
    heard_ = header(rank_).bell.load();
    progress();
    collect();
    auto& group = channels_[static_cast<std::size_t>(channel)];
    auto& slot = header(rank_).tables[group.place].slots[number % kSlots];
    if (group.held[number % kSlots] != 0) return nullptr;
    if (!post(group, slot, number, kind, send, same, budget)) return nullptr;
    auto operation = std::make_shared<Operation>();
    operation->channel = channel;
    operation->number = number;
    operation->kind = kind;
    operation->followed = followed;
    std::byte* to = receive.data;
    for (std::size_t member = 0; member < group.members.size(); ++member) {
      const std::size_t length = receive.length(member);
      if (length == 0) continue;
      if (member == group.self) {
        std::memcpy(to, own_part(send, same, member), length);
      } else {
        operation->sources.push_back({member, to, length});
      }
      to += length;
    }
    if (operation->done()) {
      unnoticed_ += followed;
    } else {
      pending_.push_back(operation);
    }
    progress();
    return operation;
  }

  // Until an operation has read all there is, or one is done that something follows, or so many
  // seconds have passed. Returns whether the operation is done.
  bool wait(const Operation& operation, double seconds) {
    bool done = false;
    sleep_until([&] { return (done = operation.done()) || unnoticed_ > 0; }, seconds);
    return done;
  }

  // From now on `wait` returns for those alone that are not done yet.
  void take_notice() {
    const std::lock_guard lock(mutex_);
    unnoticed_ = 0;
  }

  // Wait until anything has happened since there was no room, at most so many seconds.
  void pause(double seconds) {
    sleep_until([&] { return header(rank_).bell.load() != heard_; }, seconds);
  }

  bool is_done(const Operation& operation) {
    const std::lock_guard lock(mutex_);
    return operation.done();
  }

  // Let the system have what nobody reads any more.
  void give_back() {
    const std::lock_guard lock(mutex_);
    collect();
    arena_.each_free(
        [this](std::size_t first, std::size_t length) { own_.give_back(first, length); });
  }

 private:
  struct Channel {
    u64 key;
    std::vector<int> members;
    std::size_t self;
    u32 place;
    Number next;
    std::vector<int> places;  // of the group in the peers' headers, once they are known
    std::vector<u64> held;    // records that somebody has still to read, by slot
  };
  struct Held {
    std::size_t record, length;
    int channel;
    std::size_t slot;
  };

  std::byte* base(int rank) const {
    return rank == rank_ ? own_.data() : peers_[static_cast<std::size_t>(rank)].data();
  }
  Header& header(int rank) const { return *reinterpret_cast<Header*>(base(rank)); }

  static const std::byte* own_part(const Stretches& send, bool same, std::size_t self) {
    const std::byte* from = send.data;
    for (std::size_t member = 0; member < self && !same; ++member) from += send.length(member);
    return from;
  }

  bool post(Channel& group, Slot& slot, Number number, u32 kind, const Stretches& send, bool same,
            std::size_t budget) {
    const std::size_t size = group.members.size();
    std::size_t payload = 0;
    u32 readers = 0;
    for (std::size_t member = 0; member < size; ++member) {
      if (member == group.self || send.counts[member] == 0) continue;
      payload = same ? send.length(member) : payload + send.length(member);
      ++readers;
    }
    if (readers == 0) return true;
    const std::size_t table = sizeof(Record) + size * sizeof(Part);
    if (arena_.taken() > 0 && arena_.taken() + payload > budget) return false;
    const std::size_t first = arena_.take(table + payload);
    if (first == 0) {
      if (arena_.taken() == 0) throw std::runtime_error("more bytes at once than can be shared");
      return false;
    }
    auto* record = reinterpret_cast<Record*>(own_.data() + first);
    record->left.store(readers, std::memory_order_relaxed);
    record->kind = kind;
    std::size_t to = first + table;
    const std::byte* from = send.data;
    for (std::size_t member = 0; member < size; ++member) {
      const std::size_t length = send.length(member);
      record->parts()[member] = {to, member == group.self ? 0 : length};
      if (length != 0 && member != group.self && !same) {
        std::memcpy(own_.data() + to, from, length);
        to += length;
      }
      if (!same) from += length;
    }
    if (same) std::memcpy(own_.data() + to, send.data, payload);
    const std::size_t place = number % kSlots;
    group.held[place] = first;
    held_.push_back({first, table + payload, static_cast<int>(&group - channels_.data()), place});
    slot.record = first;
    slot.number.store(number, std::memory_order_release);
    for (std::size_t member = 0; member < size; ++member) {
      if (member != group.self && send.counts[member] != 0) ring(group.members[member]);
    }
    return true;
  }

  // Read whatever has come.
  void progress() {
    bool others = false;
    for (auto next = pending_.begin(); next != pending_.end();) {
      auto& sources = (*next)->sources;
      std::erase_if(sources, [&](const auto& source) { return read(**next, source); });
      others |= sources.empty();
      unnoticed_ += sources.empty() && (*next)->followed;
      next = sources.empty() ? pending_.erase(next) : std::next(next);
    }
    if (others) ring(rank_);  // another thread of this rank may wait for just that
  }

  bool read(Operation& operation, const Operation::Source& source) {
    auto& group = channels_[static_cast<std::size_t>(operation.channel)];
    const int peer = group.members[source.member];
    int& place = group.places[source.member];
    auto& theirs = header(peer);
    if (place < 0) {
      const u32 made = theirs.channels.load();
      for (u32 number = 0; number < made && place < 0; ++number) {
        if (theirs.tables[number].key.load() == group.key) place = static_cast<int>(number);
      }
      if (place < 0) return false;
    }
    auto& slot = theirs.tables[place].slots[operation.number % kSlots];
    if (slot.number.load(std::memory_order_acquire) != operation.number) return false;
    auto* record = reinterpret_cast<Record*>(base(peer) + slot.record);
    const Part part = record->parts()[group.self];
    if (part.length != source.length || record->kind != operation.kind) {
      operation.mismatched = true;
    } else {
      std::memcpy(source.to, base(peer) + part.first, part.length);
    }
    if (part.length != 0 && record->left.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      ring(peer);  // it may wait for room
    }
    return true;
  }

  // Take back the memory of what everybody has read.
  void collect() {
    held_.remove_if([this](const Held& one) {
      auto* record = reinterpret_cast<Record*>(own_.data() + one.record);
      if (record->left.load(std::memory_order_acquire) != 0) return false;
      arena_.release(one.record, one.length);
      channels_[static_cast<std::size_t>(one.channel)].held[one.slot] = 0;
      return true;
    });
  }

  void ring(int rank) {
    auto& other = header(rank);
    other.bell.fetch_add(1);
    if (other.sleepers.load() > 0) {
      syscall(SYS_futex, &other.bell, FUTEX_WAKE, 1 << 30, nullptr, nullptr, 0);
    }
  }

  template <class Ready> bool sleep_until(Ready ready, double seconds) {
    using Clock = std::chrono::steady_clock;
    const auto start = Clock::now();
    const auto end = start + std::chrono::duration<double>(seconds);
    const auto sleepy = start + std::chrono::microseconds(spins_ ? 50 : 0);
    auto& own = header(rank_);
    while (true) {
      const u32 heard = own.bell.load();
      {
        const std::lock_guard lock(mutex_);
        progress();
        if (ready()) return true;
      }
      const auto now = Clock::now();
      if (now >= end) return false;
      if (now < sleepy) continue;
      const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(end - now).count();
      const timespec span{static_cast<time_t>(left / 1'000'000'000), left % 1'000'000'000};
      own.sleepers.fetch_add(1);
      syscall(SYS_futex, &own.bell, FUTEX_WAIT, heard, &span, nullptr, 0);
      own.sleepers.fetch_sub(1);
    }
  }

  SharedPages own_;
  std::vector<SharedPages> peers_;
  int rank_;
  std::size_t span_;
  bool spins_;
  Arena arena_;
  std::mutex mutex_;
  std::vector<Channel> channels_;
  std::list<std::shared_ptr<Operation>> pending_;
  std::list<Held> held_;
  int unnoticed_ = 0;
  u32 heard_ = 0;
};

}  // namespace spgnn
