// Edges in the numbers of a halo, and the rows that they need of others, from ids in two passes.
#pragma once

#include <span>
#include <string>

#include "demand.hpp"
#include "input_error.hpp"

namespace spgnn {

// Ids in [0, n) and who owns them. Numbers lie owner by owner; without a table ids are numbers.
struct OwnedIds {
  const std::int64_t* offsets;  // [parts + 1], of numbers
  std::int64_t parts;
  std::span<const std::int32_t> numbers;  // [n], or empty

  std::int64_t size() const { return offsets[parts]; }
  bool has(std::int64_t id) const {
    return static_cast<std::uint64_t>(id) < static_cast<std::uint64_t>(size());
  }
  void prefetch(std::int64_t id) const {
    if (!numbers.empty() && has(id)) __builtin_prefetch(numbers.data() + id);
  }
  std::int64_t number(std::int64_t id) const { return numbers.empty() ? id : numbers[id]; }
};

struct HaloNeeds {
  Array<std::int64_t> rows_by_peer;  // [parts]
  Array<std::int32_t> columns;       // what is needed: numbers among each peer's own
};

template <class Id>
class HaloInspector {
 public:
  HaloInspector(const OwnedIds& sources, const OwnedIds& targets, std::int64_t me)
      : sources_(sources), targets_(targets), me_(me) {}

  // Writes the edges to `row` and `end`, [e] each: rows of the halo, and own targets.
  HaloNeeds run(std::span<const Id> from, std::span<const Id> to, std::int64_t* row,
                std::int64_t* end) const {
    const auto edges = static_cast<std::int64_t>(from.size());
    const std::int64_t first = sources_.offsets[me_], own = sources_.offsets[me_ + 1] - first;
    const std::int64_t target = targets_.offsets[me_], made = targets_.offsets[me_ + 1] - target;
    ColumnSet needed(sources_.size());
    for (std::int64_t e = 0; e < edges; ++e) {
      sources_.prefetch(from[std::min(e + kAhead, edges - 1)]);
      if (!sources_.has(from[e]) || !targets_.has(to[e])) out_of_range(e, from[e], to[e]);
      end[e] = targets_.number(to[e]) - target;
      if (static_cast<std::uint64_t>(end[e]) >= static_cast<std::uint64_t>(made)) {
        ends_elsewhere(e, to[e]);
      }
      const std::int64_t number = sources_.number(from[e]);
      row[e] = number - first;
      if (static_cast<std::uint64_t>(row[e]) >= static_cast<std::uint64_t>(own)) {
        needed.insert(number);
        row[e] = ~number;  // negative until all that is needed is known
      }
    }
    HaloNeeds found{Array<std::int64_t>(sources_.parts, 0), Array<std::int32_t>(needed.finish())};
    for (std::int64_t e = 0; e < edges; ++e) {
      if (row[e] < 0) row[e] = own + needed.rank(~row[e]);
    }
    std::int64_t next = 0, part = 0;
    needed.for_each([&](std::int64_t number) {
      while (sources_.offsets[part + 1] <= number) ++part;
      ++found.rows_by_peer[part];
      found.columns[next++] = static_cast<std::int32_t>(number - sources_.offsets[part]);
    });
    return found;
  }

 private:
  static constexpr std::int64_t kAhead = 16;

  [[noreturn]] void out_of_range(std::int64_t edge, std::int64_t from, std::int64_t to) const {
    const bool starts = !sources_.has(from);
    throw InputError("edge " + std::to_string(edge) + (starts ? " starts at " : " ends at ") +
                     std::to_string(starts ? from : to) + ", outside [0, " +
                     std::to_string((starts ? sources_ : targets_).size()) + ")");
  }

  [[noreturn]] void ends_elsewhere(std::int64_t edge, std::int64_t to) const {
    std::int64_t part = 0;
    while (targets_.offsets[part + 1] <= targets_.number(to)) ++part;
    throw InputError("edge " + std::to_string(edge) + " ends at " + std::to_string(to) +
                     ", which rank " + std::to_string(part) + " owns, not rank " +
                     std::to_string(me_) + ": each rank passes the edges that end at its own");
  }

  const OwnedIds &sources_, &targets_;
  std::int64_t me_;
};

}  // namespace spgnn
