// Bad input from outside, which Python sees as its own InputError.
#pragma once

#include <stdexcept>

namespace spgnn {

struct InputError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace spgnn
