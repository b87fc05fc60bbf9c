#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace spgnn {

// What every rank's shared memory begins with, and what it says there of each operation.

constexpr std::size_t kChannels = 4096;  // groups of ranks that a rank may be in
constexpr std::size_t kSlots = 64;       // operations of a group that nobody has to wait for yet

using Number = std::uint64_t;

// One operation of this rank in a group. Its number says that the rest can be read.
struct Slot {
  std::atomic<Number> number;  // 0: never used
  std::uint64_t record;        // where
};

struct ChannelTable {
  std::atomic<std::uint64_t> key;
  Slot slots[kSlots];
};

struct Header {
  std::uint64_t token;
  // Rises when there is something to look at. Whoever sleeps until then counts himself.
  std::atomic<std::uint32_t> bell;
  std::atomic<std::uint32_t> sleepers;
  std::atomic<std::uint32_t> channels;
  ChannelTable tables[kChannels];
};

// What a rank has for one of its peers.
struct Part {
  std::uint64_t first;
  std::uint64_t length;
};

// What a rank has for its peers; one part for each rank of the group follows.
struct Record {
  std::atomic<std::uint32_t> left;  // that have not read theirs
  std::uint32_t kind;

  Part* parts() { return reinterpret_cast<Part*>(this + 1); }
};

static_assert(std::atomic<Number>::is_always_lock_free);
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);
static_assert(sizeof(std::atomic<std::uint32_t>) == 4, "futexes are of 32 bits");

constexpr std::size_t kArena = (sizeof(Header) + 4095) / 4096 * 4096;

}  // namespace spgnn
