// What a partition is judged by: total volume, and a price that rises with a part's own volume.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace spgnn::gvb {

// Part p with send volume S costs S + α·T/β·(S/T)^β with β = 8 and T a level of reference, such as
// the average: balanced parts pay for their volume alone, a part well above T ever more (the idea
// of Acer, Selvitopi, Aykanat 2016, who re-weight parts by their share, as one smooth function).
// With the option `receive`, received rows are priced by the second term likewise.
struct Potential {
  double alpha = 0.0;
  double reference = 1.0;
  double receive_alpha = 0.0;

  double send_cost(std::int64_t s) const { return static_cast<double>(s) + alpha * excess(s); }
  double send_price(std::int64_t s) const { return 1.0 + alpha * slope(s); }
  bool prices_receive() const { return receive_alpha > 0; }
  double receive_cost(std::int64_t r) const { return receive_alpha * excess(r); }
  double receive_price(std::int64_t r) const { return receive_alpha * slope(r); }

 private:
  double excess(std::int64_t volume) const {
    const double x = static_cast<double>(volume) / reference;
    const double x2 = x * x, x4 = x2 * x2;
    return reference / 8 * x4 * x4;
  }
  double slope(std::int64_t volume) const {
    const double x = static_cast<double>(volume) / reference;
    const double x2 = x * x;
    return x2 * x2 * x2 * x;
  }
};

}  // namespace spgnn::gvb
