// What refines the volumes of a partition, level by level, and in the end its peaks; and the score
// that partitions are compared by.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "options.hpp"
#include "rebalance.hpp"
#include "refine_fm.hpp"
#include "refine_greedy.hpp"
#include "relieve.hpp"
#include "volume_moves.hpp"
#include "volume_state.hpp"

namespace spgnn::gvb {

// How much the maximum counts beside the average: little before the last stage, which lowers it,
// while the total hardly falls any more.
constexpr double kOnTheWay = 0.2, kInTheEnd = 1.0;

using Score = std::pair<std::int64_t, double>;  // overload first, then volume

// The volume is total + weight · k · maximum, this counted up to `most` averages.
inline Score score(const Hypergraph& h, const std::vector<Part>& labels, const Options& options,
                   double weight = kOnTheWay,
                   double most = std::numeric_limits<double>::infinity()) {
  const VolumeState state(h, labels, options.parts);
  const auto total = static_cast<double>(state.total());
  const auto highest =
      static_cast<double>(state.max_send() + (options.receive ? state.max_receive() : 0));
  return {state.weights().overload(options.max_weight),
          total + weight * std::min(highest * options.parts, most * total)};
}

// Units of work that one search may cost.
inline std::int64_t search_budget(const Hypergraph& h, const Options& options) {
  return options.search_budget * std::ssize(h.pins);
}

// Parts pay more than their rows from about the average on; where the maximum is far above that,
// only from its neighbourhood on, since then few parts can be kept from paying.
inline void price_volumes(VolumeState& state, const Options& options, double alpha) {
  constexpr double kReach = 1.25;
  const double average = std::max(1.0, static_cast<double>(state.total()) / options.parts);
  const auto level = [&](std::int64_t highest) {
    return std::max(average, static_cast<double>(highest) / kReach);
  };
  Potential potential;
  potential.alpha = alpha;
  potential.reference = level(state.max_send());
  potential.receive_alpha = options.receive ? alpha : 0.0;
  potential.receive_reference = level(state.max_receive());
  potential.limit_price(options.parts);
  state.set_potential(potential);
}

// The price of the score itself: a row of the fullest part costs k more, one of a part well below
// it next to nothing.
inline void price_peaks(VolumeState& state, const Options& options) {
  Potential potential;
  potential.squarings = 6;
  potential.alpha = options.parts;
  potential.reference = std::max<double>(1, static_cast<double>(state.max_send()));
  potential.receive_alpha = options.receive ? potential.alpha : 0.0;
  potential.receive_reference = std::max<double>(1, static_cast<double>(state.max_receive()));
  state.set_potential(potential);
}

// Refines the labels of one level. The closer to the finest, the more a part above average volume
// pays; on the finest itself, volume is taken off such parts as well.
inline std::vector<Part> refine_volumes(const Hypergraph& h, std::vector<Part> labels,
                                        const Bound& bounds, bool finest, const Options& options,
                                        Random& random) {
  const std::int64_t budget = search_budget(h, options);
  VolumeState state(h, std::move(labels), options.parts);
  const auto refine = [&](int search_passes) {
    GreedyRefiner<VolumeMoves>({state, bounds}, h.num_vertices, random).run(options.greedy_rounds);
    LocalSearch(state, bounds, options.patience, random).run(search_passes, budget);
  };
  price_volumes(state, options, finest ? options.alpha_fine : options.alpha_coarse);
  Rebalancer(state, bounds).run();
  refine(options.search_passes);
  if (finest) {
    price_volumes(state, options, options.alpha_last);
    Reliever(state, bounds).run(budget);
    refine(std::min(1, options.search_passes));
  }
  return std::move(state).take_labels();
}

inline bool is_even(const VolumeState& state, const Options& options) {
  const double most = options.even * static_cast<double>(state.total()) / options.parts;
  return static_cast<double>(state.max_send()) <= most &&
         (!options.receive || static_cast<double>(state.max_receive()) <= most);
}

// Lowers the maximum of the finest level. Only moves that take rows off a part with a price are
// looked for. Calls before_round(), and returns the labels it was given if they were better.
template <class BeforeRound>
std::vector<Part> lower_peaks(const Hypergraph& h, std::vector<Part> labels, const Options& options,
                              Random& random, const BeforeRound& before_round) {
  constexpr double kNoticed = 1.2;  // a price; without a peak 1
  const std::int64_t work = 3 * search_budget(h, options);
  VolumeState state(h, labels, options.parts);
  for (int round = 0; round < options.peak_rounds && !is_even(state, options); ++round) {
    before_round();
    price_peaks(state, options);
    Reliever(state, options.max_weight).run(work);
    GreedyRefiner<VolumeMoves>({state, options.max_weight}, h.num_vertices, random)
        .run(1, near_expensive_parts(state, kNoticed));
    LocalSearch(state, options.max_weight, options.patience, random)
        .run_from(near_expensive_parts(state, kNoticed), work);
  }
  std::vector<Part> found = std::move(state).take_labels();
  const bool better = score(h, found, options, kInTheEnd) < score(h, labels, options, kInTheEnd);
  return better ? found : labels;
}

}  // namespace spgnn::gvb
