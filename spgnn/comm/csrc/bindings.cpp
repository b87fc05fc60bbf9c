#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include "endpoint.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using Counts = nb::ndarray<const i64, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using spgnn::Endpoint;
using spgnn::Operation;

spgnn::Stretches stretches(std::uintptr_t data, const Counts& counts, std::size_t unit) {
  return {reinterpret_cast<std::byte*>(data), counts.data(), unit};
}

// Slices that are short enough for Ctrl-C to be heard.
constexpr double kSlice = 0.05;

}  // namespace

void bind_comm(nb::module_& m) {
  nb::class_<Operation>(m, "Operation", "Begun, and perhaps not read yet.")
      .def_ro("mismatched", &Operation::mismatched);
  nb::class_<Endpoint>(m, "Endpoint", "A rank's own memory, which its peers read, and theirs.")
      .def(nb::init<std::size_t, u64, int, int, bool>(), "span"_a, "token"_a, "ranks"_a, "rank"_a,
           "spins"_a)
      .def_prop_ro("file", &Endpoint::file)
      .def("meet", &Endpoint::meet, "rank"_a, "process"_a, "file"_a, "token"_a)
      .def("open", &Endpoint::open, "key"_a, "members"_a, "member"_a)
      .def("reserve", &Endpoint::reserve, "channel"_a, "count"_a)
      .def(
          "begin",
          [](Endpoint& self, int channel, spgnn::Number number, u32 kind, std::uintptr_t send,
             const Counts& sent, std::size_t unit, bool same, std::uintptr_t receive,
             const Counts& received, bool followed, std::size_t budget) {
            nb::gil_scoped_release released;
            return self.begin(channel, number, kind, stretches(send, sent, unit), same,
                              stretches(receive, received, unit), followed, budget);
          },
          "channel"_a, "number"_a, "kind"_a, "send"_a, "sent"_a, "unit"_a, "same"_a, "receive"_a,
          "received"_a, "followed"_a, "budget"_a)
      .def(
          "wait",
          [](Endpoint& self, const Operation& operation) {
            nb::gil_scoped_release released;
            return self.wait(operation, kSlice);
          },
          "operation"_a)
      .def("pause",
           [](Endpoint& self) {
             nb::gil_scoped_release released;
             self.pause(kSlice);
           })
      .def("take_notice", &Endpoint::take_notice)
      .def("is_done", &Endpoint::is_done, "operation"_a)
      .def("give_back", &Endpoint::give_back);
}
