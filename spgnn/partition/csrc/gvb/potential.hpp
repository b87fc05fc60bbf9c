// What a partition is judged by: total volume, and a price that rises with a part's own volume.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace spgnn::gvb {

// Part p with send volume S costs S + α·T/β·(S/T)^β, T a level of reference: with T the average and
// β = 8, balanced parts pay for their volume alone, a part well above T ever more (the idea of
// Acer, Selvitopi, Aykanat 2016, who re-weight parts by their share, as one smooth function). With
// T the maximum and β = 64 only the parts close to it pay more. With the option `receive`, received
// rows are priced by the second term likewise.
struct Potential {
  double alpha = 0.0;
  double reference = 1.0;
  double receive_alpha = 0.0;
  double receive_reference = 1.0;
  int squarings = 3;  // β = 2^squarings
  double knee =
      std::numeric_limits<double>::infinity();  // the price is constant from S = knee·T on

  double send_cost(std::int64_t s) const {
    return static_cast<double>(s) + alpha * excess(s, reference);
  }
  double send_price(std::int64_t s) const { return 1.0 + alpha * slope(s, reference); }
  bool prices_receive() const { return receive_alpha > 0; }
  double receive_cost(std::int64_t r) const { return receive_alpha * excess(r, receive_reference); }
  double receive_price(std::int64_t r) const { return receive_alpha * slope(r, receive_reference); }

  // No row costs more than `extra` above its one row: k is what a row of the fullest part costs
  // where average and maximum count alike.
  void limit_price(double extra) {
    if (alpha > 0) knee = std::pow(extra / alpha, 1.0 / ((1 << squarings) - 1));
  }

 private:
  double excess(std::int64_t volume, double level) const {
    const double x = static_cast<double>(volume) / level, bent = std::min(x, knee);
    return level * power(bent) * (bent / (1 << squarings) + (x - bent));
  }
  double slope(std::int64_t volume, double level) const {
    return power(std::min(static_cast<double>(volume) / level, knee));
  }
  // x^(β − 1)
  double power(double x) const {
    double product = x;
    for (int i = 1; i < squarings; ++i) {
      x *= x;
      product *= x;
    }
    return product;
  }
};

}  // namespace spgnn::gvb
