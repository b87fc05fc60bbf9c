// Tensors as bindings read them: by the attributes of torch.Tensor, so that nothing links with
// torch (DLPack takes microseconds for each, and refuses what requires a gradient).
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstdint>
#include <stdexcept>

namespace spgnn {

enum class Dtype { kFloat32, kFloat64, kBfloat16, kInt32, kInt64, kUInt8, kBool, kNone };

// A tensor in memory of at most three dimensions, or none.
struct Tensor {
  void* data = nullptr;
  Dtype dtype = Dtype::kNone;
  int dims = 0;
  std::int64_t shape[3] = {}, stride[3] = {};
  nanobind::object owner;

  explicit operator bool() const { return dtype != Dtype::kNone; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
  std::int64_t rows() const { return shape[0]; }
  std::int64_t columns() const { return shape[dims - 1]; }
  std::int64_t count() const {
    std::int64_t product = 1;
    for (int d = 0; d < dims; ++d) product *= shape[d];
    return product;
  }
  bool has_unit_columns() const { return dims == 0 || columns() <= 1 || stride[dims - 1] == 1; }
  bool has_gaps() const {
    std::int64_t expected = 1;
    for (int d = dims - 1; d >= 0; --d) {
      if (shape[d] > 1 && stride[d] != expected) return count() > 0;
      expected *= shape[d];
    }
    return false;
  }
};

// What is only read, copied where neighbouring columns are not beside each other; and copied where
// it has any gaps.
struct Rows : Tensor {};
struct Dense : Tensor {};

// What is asked of torch. Never destroyed: Python may be gone by then.
struct Torch {
  PyObject *data_ptr, *dtype, *shape, *stride, *contiguous, *get_num_threads;
  std::array<PyObject*, 7> dtypes;  // in the order of Dtype

  static const Torch& get() {
    static const Torch torch;
    return torch;
  }

 private:
  Torch() {
    data_ptr = PyUnicode_InternFromString("data_ptr");
    dtype = PyUnicode_InternFromString("dtype");
    shape = PyUnicode_InternFromString("shape");
    stride = PyUnicode_InternFromString("stride");
    contiguous = PyUnicode_InternFromString("contiguous");
    const nanobind::object torch = nanobind::module_::import_("torch");
    get_num_threads = nanobind::object(torch.attr("get_num_threads")).release().ptr();
    int place = 0;
    for (const char* name : {"float32", "float64", "bfloat16", "int32", "int64", "uint8", "bool"}) {
      dtypes[place++] = nanobind::object(torch.attr(name)).release().ptr();
    }
  }
};

inline nanobind::object checked(PyObject* result) {
  if (!result) nanobind::raise_python_error();
  return nanobind::steal(result);
}

// As many threads as torch has, if there is work for several: below so many multiplications a
// second one costs more than it saves.
inline int threads_for(std::int64_t work) {
  if (work < 32768) return 1;
  return nanobind::cast<int>(checked(PyObject_CallNoArgs(Torch::get().get_num_threads)));
}

inline void read(PyObject* source, Tensor& tensor) {
  const Torch& torch = Torch::get();
  const auto dtype = checked(PyObject_GetAttr(source, torch.dtype));
  int kind = 0;
  while (kind < 7 && torch.dtypes[kind] != dtype.ptr()) ++kind;
  if (kind == 7) throw std::invalid_argument("no kernel takes this dtype");
  tensor.dtype = static_cast<Dtype>(kind);
  const auto data = checked(PyObject_CallMethodObjArgs(source, torch.data_ptr, nullptr));
  tensor.data = PyLong_AsVoidPtr(data.ptr());
  const auto shape = checked(PyObject_GetAttr(source, torch.shape));
  const auto stride = checked(PyObject_CallMethodObjArgs(source, torch.stride, nullptr));
  tensor.dims = static_cast<int>(NB_TUPLE_GET_SIZE(shape.ptr()));
  if (tensor.dims > 3) throw std::invalid_argument("no kernel takes more than three dimensions");
  for (int d = 0; d < tensor.dims; ++d) {
    tensor.shape[d] = PyLong_AsLongLong(NB_TUPLE_GET_ITEM(shape.ptr(), d));
    tensor.stride[d] = PyLong_AsLongLong(NB_TUPLE_GET_ITEM(stride.ptr(), d));
  }
  tensor.owner = nanobind::borrow(source);
}

}  // namespace spgnn

namespace nanobind::detail {

template <class T>
struct tensor_caster {
  NB_TYPE_CASTER(T, const_name("torch.Tensor"))

  bool from_python(handle source, std::uint32_t, cleanup_list*) noexcept {
    value = T{};  // one caster reads all of a list
    if (source.is_none()) return true;
    try {
      spgnn::read(source.ptr(), value);
      const bool copies = std::is_same_v<T, spgnn::Dense>  ? value.has_gaps()
                          : std::is_same_v<T, spgnn::Rows> ? !value.has_unit_columns()
                                                           : false;
      if (copies) {
        const auto& contiguous = spgnn::Torch::get().contiguous;
        spgnn::read(
            spgnn::checked(PyObject_CallMethodObjArgs(source.ptr(), contiguous, nullptr)).ptr(),
            value);
      }
      return true;
    } catch (...) {
      PyErr_Clear();
      return false;
    }
  }
};

template <>
struct type_caster<spgnn::Tensor> : tensor_caster<spgnn::Tensor> {};
template <>
struct type_caster<spgnn::Rows> : tensor_caster<spgnn::Rows> {};
template <>
struct type_caster<spgnn::Dense> : tensor_caster<spgnn::Dense> {};

}  // namespace nanobind::detail
