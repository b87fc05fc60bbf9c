// Arrays as bindings take them from Python and give them to it.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "parallel.hpp"

namespace spgnn::python {

template <class T>
using Output = nanobind::ndarray<T, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
template <class T> using Array = Output<const T>;

template <class T> std::span<T> span_of(const Output<T>& array) {
  return {array.data(), array.size()};
}
template <class T> std::span<const T> span_of(const std::optional<Array<T>>& array) {
  return array ? span_of(*array) : std::span<const T>();
}

// A NumPy array of the first `size` values of an array, which it takes over; without it of all.
template <class Values> nanobind::object to_numpy(Values&& values, i64 size = -1) {
  static_assert(!std::is_lvalue_reference_v<Values>);
  using T = std::remove_pointer_t<decltype(values.data())>;
  auto* owned = new Values(std::move(values));
  nanobind::capsule owner(owned, [](void* p) noexcept { delete static_cast<Values*>(p); });
  const auto length = static_cast<std::size_t>(size < 0 ? owned->size() : size);
  return nanobind::cast(
      nanobind::ndarray<nanobind::numpy, T, nanobind::ndim<1>>(owned->data(), {length}, owner));
}

// A tuple of arrays that take over these.
template <class... Values> nanobind::tuple to_tuple(Values&&... values) {
  return nanobind::make_tuple(to_numpy(std::forward<Values>(values))...);
}

// What work() returns, made without Python's lock.
template <class Work> auto unlocked(const Work& work) {
  nanobind::gil_scoped_release released;
  return work();
}

// Lets Ctrl-C through and reports progress; runs on the thread that Python called from.
inline Tick make_tick(nanobind::object progress) {
  return [progress](i64 done, i64 all) {
    nanobind::gil_scoped_acquire acquired;
    if (PyErr_CheckSignals() != 0) throw nanobind::python_error();
    if (!progress.is_none()) progress(done, all);
  };
}

}  // namespace spgnn::python
