// What a caller chooses about gvb, and the constants of its steps.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "cut_partition.hpp"
#include "hypergraph.hpp"
#include "two_way.hpp"

namespace spgnn::gvb {

struct Options {
  Part parts = 1;
  std::vector<std::int64_t> max_weight;  // of a part, per constraint
  std::uint64_t seed = 0;
  bool receive = false;  // also balance received rows
  int threads = 1;       // the labels do not depend on it
  int starts = 3;        // first partitions, combined two by two
  int cycles = 1;        // V-cycles from the result
  CutOptions cut;
  // The last of several starts bisects the nets, if more than this share of pins is away from the
  // root; -1: always, 1: never. Where fewer are, as in meshes, the cut sees all there is.
  double net_start_above = 0.1;
  Vertex net_vertices_per_part = 100;  // of the level it does that on
  BisectionOptions net_bisection{30, 4, 400};
  Vertex vertices_per_part = 20;  // of the coarsest level of a V-cycle
  // On coarse levels a part may exceed its bound by up to this share; see v_cycle.
  double slack = 0.1;
  std::int64_t pair_budget = 6;
  std::int32_t max_members = 4;
  int greedy_rounds = 3;
  int search_passes = 2;
  std::int32_t patience = 30;
  std::int64_t search_budget = 6;  // units of work per pin and level
  double alpha_coarse = 0.15, alpha_fine = 0.4, alpha_last = 0.9;  // of the potential, by stage
  int peak_rounds = 8;  // at most; in which only parts close to the maximum pay more
  // The maximum is not pressed below this many averages: it would take time, and rows of the total,
  // for little.
  double even = 1.12;
  // Called between steps with a stage and the share of it that is done; may throw to interrupt.
  std::function<void(const char*, double)> progress;
};

}  // namespace spgnn::gvb
