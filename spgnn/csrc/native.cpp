// The compiled module: what every room leaves to C++, on arguments that its Python has checked.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "instruction_sets.hpp"
#include "std.hpp"

namespace nb = nanobind;

void bind_comm(nb::module_& m);
void bind_data(nb::module_& m);
void bind_dynamic(nb::module_& m);
void bind_exchange(nb::module_& m);
void bind_gvb(nb::module_& m);
void bind_kernels(nb::module_& m);
void bind_partition(nb::module_& m);
void bind_pattern(nb::module_& m);
void bind_sampling(nb::module_& m);
void bind_stale(nb::module_& m);
void bind_store(nb::module_& m);

NB_MODULE(_native, m) {
  // Objects that a program keeps until its interpreter ends are not leaks.
  nb::set_leak_warnings(false);
  if (spgnn::available_isas().empty()) {
    throw nb::import_error(
        "this spgnn was compiled for other processors; compile it on this machine, or anywhere "
        "with "
        "-C cmake.define.SPGNN_SETS=all");
  }
  nb::register_exception_translator(
      [](const std::exception_ptr& error, void* input_error) {
        try {
          std::rethrow_exception(error);
        } catch (const spgnn::InputError& bad) {
          PyErr_SetString(static_cast<PyObject*>(input_error), bad.what());
        }
      },
      nb::object(nb::module_::import_("spgnn.errors").attr("InputError")).release().ptr());
  for (auto* bind : {bind_comm, bind_data, bind_dynamic, bind_exchange, bind_gvb, bind_kernels,
                     bind_partition, bind_pattern, bind_sampling, bind_stale, bind_store}) {
    bind(m);
  }
  m.def("instruction_sets", [] {
    std::vector<std::string> names;
    for (const auto isa : spgnn::available_isas()) names.emplace_back(spgnn::name_of(isa));
    return names;
  });
  m.def("instruction_set", [] { return spgnn::name_of(spgnn::current_isa()); });
  m.def("use_instruction_set", &spgnn::use_isa, nb::arg("name"));
}
