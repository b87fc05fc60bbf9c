// Agents: through which rank of a node each thing crosses that two nodes exchange.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace spgnn {

// Things to carry, each of one block (a pair of nodes), and the ranks that could carry them.
struct Cargo {
  std::span<const std::int64_t> block;      // of each thing
  std::span<const std::int64_t> home;       // the rank that carries it for nothing
  std::span<const std::int64_t> begin;      // of its other candidates; things + 1 entries
  std::span<const std::int64_t> candidate;  // ranks; may repeat
};

// The agent of each thing. Within a block no home carries more than an even share; what is above
// that goes to the candidate that has least to carry, if it has less than the home. Deterministic.
inline std::vector<std::int64_t> choose_agents(const Cargo& cargo, std::int64_t blocks,
                                               std::int64_t ranks) {
  const auto things = static_cast<std::int64_t>(cargo.block.size());
  std::vector<std::int64_t> share(blocks, 0), load(blocks * ranks, 0);
  for (const std::int64_t block : cargo.block) ++share[block];
  for (auto& of_block : share) of_block = (of_block + ranks - 1) / ranks;
  std::vector<std::int64_t> agent(cargo.home.begin(), cargo.home.end()), waiting;
  for (std::int64_t thing = 0; thing < things; ++thing) {
    auto& at_home = load[cargo.block[thing] * ranks + cargo.home[thing]];
    if (at_home < share[cargo.block[thing]]) {
      ++at_home;
    } else {
      waiting.push_back(thing);
    }
  }
  for (const std::int64_t thing : waiting) {
    auto* carries = &load[cargo.block[thing] * ranks];
    for (std::int64_t i = cargo.begin[thing]; i < cargo.begin[thing + 1]; ++i) {
      const std::int64_t rank = cargo.candidate[i];
      if (carries[rank] < carries[agent[thing]]) agent[thing] = rank;
    }
    ++carries[agent[thing]];
  }
  return agent;
}

}  // namespace spgnn
