// Where entries that were drawn of a row are written.
#pragma once

#include <cstdint>

namespace spgnn {

// What is written behind them until the next row is: all have room for so many more.
inline constexpr std::int64_t kMoreRoom = 40;
template <class Index>
struct Picks {
  Index* columns;
  std::uint32_t* offsets;  // in the row
  float* shares;
};

// How it was drawn, which says what each entry stands for: so many arrived, or (0) they did until
// some time.
struct Arrivals {
  std::int64_t count;
  float time;
};

}  // namespace spgnn
