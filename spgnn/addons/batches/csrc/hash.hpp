// Random numbers that are functions of what they are for, so that they depend on nothing else.
//
// Names are mixed by the finaliser of SplitMix64 (Steele, Lea & Flood, OOPSLA 2014); the many draws
// of one name by a multiplication, as in wyrand (Wang Yi, wyhash, 2019).
#pragma once

#include <cstdint>

#include "inlined.hpp"

namespace spgnn {

// What every draw of a sample is a hash of, beside hop, vertex and column.
struct Draw {
  std::uint64_t seed, epoch, batch;
};

// The draws of one vertex: column 0, 1, ….
class VertexDraws {
 public:
  static constexpr std::uint64_t kStep = 0xA0761D6478BD642FULL, kMask = 0xE7037ED1A0B428DBULL;

  VertexDraws() = default;
  explicit VertexDraws(std::uint64_t state) : state_(state) {}
  std::uint64_t operator[](std::uint64_t column) const {
    const std::uint64_t x = state_ + column * kStep;
    const auto product = static_cast<unsigned __int128>(x) * (x ^ kMask);
    return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
  }
  std::uint64_t state() const { return state_; }

 private:
  std::uint64_t state_ = 0;
};

// The draws of one hop of one batch.
class HopDraws {
 public:
  HopDraws(const Draw& draw, std::uint64_t hop)
      : state_(mixed(mixed(mixed(mixed(draw.seed) ^ draw.epoch) ^ draw.batch) ^ hop)) {}
  VertexDraws of(std::uint64_t id) const { return VertexDraws(mixed(state_ ^ id)); }
  // The draws of a vertex in one of many trees.
  VertexDraws of(std::uint64_t id, std::uint64_t root) const {
    return VertexDraws(mixed(mixed(state_ ^ id) ^ mixed(root)));
  }

 private:
  std::uint64_t state_;
};

// A number in [0, limit) from 64 random bits.
inline std::uint64_t below(std::uint64_t random, std::uint64_t limit) {
  return static_cast<std::uint64_t>((static_cast<unsigned __int128>(random) * limit) >> 64);
}

// A number in (0, 1) from 64 random bits.
inline double unit(std::uint64_t random) {
  return (static_cast<double>(random >> 11) + 0.5) * 0x1p-53;
}

}  // namespace spgnn
