// What the bindings of all families share: an argument from Python, checked for what the kernel will read or write there.
//
// Facts (numbers and switches of a layer) come as one tuple, the one autograd's Function carries from forward to backward:
// the named tuples of kernels/facts.py, in the order of their fields. Tensors that belong together (results, gradients)
// come as a tuple as well: no entry has more than eight arguments.
#pragma once
#include <nanobind/nanobind.h>

#include <string>
#include <type_traits>

#include "dispatch.h"
#include "tensors.h"

namespace normlab {

namespace nb = nanobind;
typedef nb::handle Object;

extern const Isa* chosen;  // whose kernels run
extern Tensors tensors;

void bind_rows(nb::module_& m);
void bind_columns(nb::module_& m);
void bind_pointwise(nb::module_& m);

// ---- tuples ----

// The items of a tuple of `size`, one after the other; they live as long as the tuple.
class Items {
public:
    Items(const char* name, Object tuple, Py_ssize_t size) : tuple_(tuple.ptr()) {
        if (!PyTuple_Check(tuple_) || PyTuple_Size(tuple_) != size)
            throw nb::type_error((std::string(name) + " must be a tuple of " + std::to_string(size)).c_str());
    }
    Object object() {
        PyObject* item = PyTuple_GetItem(tuple_, next_++);
        if (!item) nb::raise_python_error();
        return item;
    }
    template <class V> V take() {
        const Object item = object();
        if constexpr (std::is_same_v<V, bool>) {
            const int truth = PyObject_IsTrue(item.ptr());
            if (truth < 0) nb::raise_python_error();
            return truth;
        } else {
            V value;
            if (!nb::try_cast<V>(item, value))
                throw nb::type_error((std::string(std::is_integral_v<V> ? "an integer" : "a number") + " is needed, got " +
                                      nb::repr(item).c_str()).c_str());
            return value;
        }
    }
    // The index of a word among `words`.
    template <size_t N> int word(const char* const (&words)[N]) { return word_of(object(), words); }
    template <size_t N> static int word_of(Object item, const char* const (&words)[N]) {
        if (PyUnicode_Check(item.ptr()))
            for (size_t i = 0; i < N; ++i)
                if (PyUnicode_CompareWithASCIIString(item.ptr(), words[i]) == 0) return (int)i;
        throw nb::value_error("no such kind of norm");
    }

private:
    PyObject* tuple_;
    Py_ssize_t next_ = 0;
};

// ---- one tensor ----

inline std::string count_of(int64_t n) { return std::to_string(n) + (n == 1 ? " value" : " values"); }

// Values without gaps: a parameter, the place for its gradient, statistics.
inline const Seen& dense_values(const Seen& s, int64_t size) {
    if (s.size != size) s.refuse("has " + count_of(s.size) + ", " + std::to_string(size) + " are needed");
    if (!s.dense()) s.refuse("is not dense");
    return s;
}

// Parameters and the places for their gradients, all of one dtype; None is null.
struct Parameters {
    DType dtype = DType::f32;
    bool any = false;
    char* take(const Seen& s, int64_t size) {
        dense_values(s, size);
        if (any && s.dtype != dtype) s.refuse("has another dtype than the other parameters");
        dtype = s.dtype;
        any = true;
        return s.data;
    }
    // Along one axis: a gradient has the shape of its parameter, and that of the bias is made like the weight.
    static const Seen& flat(const Seen& s) {
        if (s.axes != 1) s.refuse("has more than one axis");
        return s;
    }
    const void* read(const char* name, Object h, int64_t size) {
        return h.is_none() ? nullptr : take(flat(tensors.read(name, h.ptr())), size);
    }
    void* write(const char* name, Object h, int64_t size) {
        return h.is_none() ? nullptr : take(flat(tensors.write(name, h.ptr())), size);
    }
    void* read_and_write(const char* name, Object h, int64_t size) { return take(flat(tensors.read(name, h.ptr())), size); }
    const void* read_scalar(const char* name, Object h) { return h.is_none() ? nullptr : take(tensors.read(name, h.ptr()), 1); }
    void* write_scalar(const char* name, Object h) { return h.is_none() ? nullptr : take(tensors.write(name, h.ptr()), 1); }
};

// float64 values in a tensor of `size`, or null.
inline double* doubles_in(const char* name, Object h, int64_t size) {
    if (h.is_none()) return nullptr;
    const Seen s = tensors.read(name, h.ptr());  // statistics may come back from a hook on saved tensors
    if (s.dtype != DType::f64) s.refuse("is not float64");
    return (double*)dense_values(s, size).data;
}

// Statistics: a float64 tensor, or bytes (a tenth of the price).
inline double* statistics_in(Object h, int64_t size) {
    if (h.is_none()) throw Unfit("the statistics are missing");
    if (!PyBytes_Check(h.ptr())) return doubles_in("the tensor of statistics", h, size);
    if (PyBytes_Size(h.ptr()) != size * (int64_t)sizeof(double)) throw Unfit("the bytes of statistics are of another size");
    return (double*)PyBytes_AsString(h.ptr());
}

// The place for statistics: a tensor, or with None fresh bytes, kept in `made` to be returned.
struct Place {
    nb::object made = nb::none();
    double* at(Object h, int64_t size) {
        if (!h.is_none()) return doubles_in("the tensor of statistics", h, size);
        made = nb::steal(PyBytes_FromStringAndSize(nullptr, size * (int64_t)sizeof(double)));
        if (!made.is_valid()) nb::raise_python_error();
        return (double*)PyBytes_AsString(made.ptr());
    }
};

// Of x's shape and dtype, dense.
inline char* dense_like(const Seen& x, const Seen& s) {
    if (!s.shaped(x)) s.refuse("has another shape than " + std::string(x.name));
    if (s.dtype != x.dtype) s.refuse("has another dtype than " + std::string(x.name));
    if (!s.dense()) s.refuse("is not dense");
    return s.data;
}
inline char* read_like(const Seen& x, const char* name, Object h) {
    return h.is_none() ? nullptr : dense_like(x, tensors.read(name, h.ptr()));
}
inline char* write_like(const Seen& x, const char* name, Object h) {
    return h.is_none() ? nullptr : dense_like(x, tensors.write(name, h.ptr()));
}

}  // namespace normlab
