// Tensors as bindings read them, without linking with torch: by DLPack's exchange API where torch
// has it (a tenth of a microsecond each), else by attributes of torch.Tensor.
#pragma once

#include <nanobind/nanobind.h>

#include "std.hpp"

namespace spgnn {

enum class Dtype { kFloat32, kFloat64, kBfloat16, kInt32, kInt64, kUInt8, kBool, kNone };

// A tensor in memory of at most three dimensions, or none.
struct Tensor {
  void* data = nullptr;
  Dtype dtype = Dtype::kNone;
  int dims = 0;
  i64 shape[3] = {}, stride[3] = {};
  bool on_cpu = false;  // known to be; false where attributes were read
  nanobind::object owner;

  explicit operator bool() const { return dtype != Dtype::kNone; }
  template <class T> T* as() const { return static_cast<T*>(data); }
  i64 rows() const { return shape[0]; }
  i64 columns() const { return shape[dims - 1]; }
  i64 count() const {
    i64 product = 1;
    for (int d = 0; d < dims; ++d) product *= shape[d];
    return product;
  }
  bool has_unit_columns() const { return dims == 0 || columns() <= 1 || stride[dims - 1] == 1; }
  bool has_gaps() const {
    i64 expected = 1;
    for (int d = dims - 1; d >= 0; --d) {
      if (shape[d] > 1 && stride[d] != expected) return count() > 0;
      expected *= shape[d];
    }
    return false;
  }
};

// Only read: copied where neighbouring columns are apart; and where there are any gaps.
struct Rows : Tensor {};
struct Dense : Tensor {};

// DLPack's view of a tensor, and the function that makes one (dlpack.h, version 1.3).
struct DlTensor {
  void* data;
  i32 device_type, device_id, dims;
  u8 kind, bits;
  u16 lanes;
  const i64 *shape, *stride;
  u64 byte_offset;

  static constexpr i32 kCpu = 1;

  Dtype dtype() const {
    if (lanes != 1) return Dtype::kNone;
    constexpr int kInt = 0, kUInt = 1, kFloat = 2, kBfloat = 4, kBool = 6;
    const auto is = [&](int wanted, int size) { return kind == wanted && bits == size; };
    return is(kFloat, 32)    ? Dtype::kFloat32
           : is(kInt, 64)    ? Dtype::kInt64
           : is(kInt, 32)    ? Dtype::kInt32
           : is(kFloat, 64)  ? Dtype::kFloat64
           : is(kBfloat, 16) ? Dtype::kBfloat16
           : is(kUInt, 8)    ? Dtype::kUInt8
           : is(kBool, 8)    ? Dtype::kBool
                             : Dtype::kNone;
  }
};

struct DlExchange {
  u32 major, minor;
  const void *earlier, *allocate, *from_object, *to_object;
  int (*view)(void* object, DlTensor* tensor);  // 0, or -1 and an exception
  const void* current_stream;
};

// What is asked of torch. Never destroyed: Python may be gone by then.
struct Torch {
  PyObject *data_ptr, *dtype, *shape, *stride, *contiguous, *get_num_threads;
  std::array<PyObject*, 7> dtypes;  // in the order of Dtype
  PyTypeObject* tensor;
  const DlExchange* exchange = nullptr;  // null where this torch has none

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
    const nanobind::object type = torch.attr("Tensor");
    constexpr const char* kTable = "__dlpack_c_exchange_api__";
    if (nanobind::hasattr(type, kTable)) {
      const nanobind::object table = type.attr(kTable);
      exchange =
          static_cast<const DlExchange*>(PyCapsule_GetPointer(table.ptr(), "dlpack_exchange_api"));
      if (!exchange) PyErr_Clear();
      if (exchange && exchange->major != 1) exchange = nullptr;
    }
    tensor = reinterpret_cast<PyTypeObject*>(nanobind::object(type).release().ptr());
  }
};

inline nanobind::object checked(PyObject* result) {
  if (!result) nanobind::raise_python_error();
  return nanobind::steal(result);
}

// As many as torch has, if work (multiplications) is worth a second one.
inline int threads_for(i64 work) {
  if (work < 32768) return 1;
  return nanobind::cast<int>(checked(PyObject_CallNoArgs(Torch::get().get_num_threads)));
}

inline void read(PyObject* source, Tensor& tensor) {
  const Torch& torch = Torch::get();
  if (torch.exchange && PyObject_TypeCheck(source, torch.tensor)) {
    DlTensor view{};
    if (torch.exchange->view(source, &view)) nanobind::raise_python_error();
    tensor.dtype = view.dtype();
    if (tensor.dtype == Dtype::kNone) throw std::invalid_argument("no kernel takes this dtype");
    if (view.dims > 3) throw std::invalid_argument("no kernel takes more than three dimensions");
    tensor.data = static_cast<char*>(view.data) + view.byte_offset;
    tensor.dims = view.dims;
    for (int d = 0; d < view.dims; ++d) {
      tensor.shape[d] = view.shape[d];
      tensor.stride[d] = view.stride[d];
    }
    tensor.on_cpu = view.device_type == DlTensor::kCpu;
    tensor.owner = nanobind::borrow(source);
    return;
  }
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

template <class T> struct tensor_caster {
  NB_TYPE_CASTER(T, const_name("torch.Tensor"))

  bool from_python(handle source, u32, cleanup_list*) noexcept {
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

template <> struct type_caster<spgnn::Tensor> : tensor_caster<spgnn::Tensor> {};
template <> struct type_caster<spgnn::Rows> : tensor_caster<spgnn::Rows> {};
template <> struct type_caster<spgnn::Dense> : tensor_caster<spgnn::Dense> {};

}  // namespace nanobind::detail
