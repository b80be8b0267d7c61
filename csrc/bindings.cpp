// The only file that knows Python (with tensors.h). No arithmetic: tensors are checked for what the kernel will read and write,
// described in the kernel's struct, and the GIL is released.
//
// Facts (numbers and switches) come as one tuple, the tuple that autograd's Function carries from forward to backward:
//   rows     (mode, eps, width, partial, offset gain, round before gain), with a residual also alpha, drop, seed
//   columns  (eps, offset gain, centered, channel axis, groups, pooled)
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <nanobind/stl/pair.h>

#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "dispatch.h"
#include "tensors.h"

namespace nb = nanobind;
using namespace normlab;

namespace {

typedef nb::handle Object;
const Isa* chosen = nullptr;
Tensors tensors;

std::string count_of(int64_t n) { return std::to_string(n) + (n == 1 ? " value" : " values"); }

// ---- one tensor ----

// Values without gaps: a parameter, the place for its gradient, statistics.
const Seen& dense_values(const Seen& s, int64_t size) {
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
    const void* read_scalar(const char* name, Object h) { return h.is_none() ? nullptr : take(tensors.read(name, h.ptr()), 1); }
    void* write_scalar(const char* name, Object h) { return h.is_none() ? nullptr : take(tensors.write(name, h.ptr()), 1); }
};

// float64 values in a tensor of `size`, or null.
double* doubles_in(const char* name, Object h, int64_t size) {
    if (h.is_none()) return nullptr;
    const Seen s = tensors.read(name, h.ptr());  // statistics may come back from a hook on saved tensors
    if (s.dtype != DType::f64) s.refuse("is not float64");
    return (double*)dense_values(s, size).data;
}

// Statistics: a float64 tensor, or bytes (a tenth of the price). None: bytes are made, and kept in `made` to be returned.
struct Statistics {
    nb::object made = nb::none();
    double* at(Object h, int64_t size) {
        if (h.is_none()) {
            made = nb::steal(PyBytes_FromStringAndSize(nullptr, size * (int64_t)sizeof(double)));
            if (!made.is_valid()) nb::raise_python_error();
            return (double*)PyBytes_AS_STRING(made.ptr());
        }
        if (!PyBytes_Check(h.ptr())) return doubles_in("the tensor of statistics", h, size);
        if (PyBytes_GET_SIZE(h.ptr()) != size * (int64_t)sizeof(double)) throw Unfit("the bytes of statistics are of another size");
        return (double*)PyBytes_AS_STRING(h.ptr());
    }
};

// The items of a tuple of facts, one after the other.
struct Facts {
    PyObject* tuple;
    Py_ssize_t next = 0;
    explicit Facts(Object h) : tuple(h.ptr()) {
        if (!PyTuple_Check(tuple)) throw nb::type_error("facts must be a tuple");
    }
    template <class V> V take() {
        PyObject* item = PyTuple_GetItem(tuple, next++);
        if (!item) nb::raise_python_error();
        if constexpr (std::is_same_v<V, bool>) return PyObject_IsTrue(item) == 1;
        else return nb::cast<V>(Object(item));
    }
    bool more() const { return next < PyTuple_GET_SIZE(tuple); }
};

// ---- rows ----

// rows and width of x, and the step between rows: even, forwards, without overlap.
void set_rows(RowNorm& a, const Seen& x) {
    if (!x.axes || x.last < 1) x.refuse("has nothing to normalize over");
    a.x = x.data;
    a.dtype = x.dtype;
    a.width = a.x_stride = x.last;
    a.rows = x.size / x.last;
    if (x.dense()) return;
    if (x.last != 1 && x.strides[x.axes - 1] != 1) x.refuse("has rows with gaps");
    int64_t expected = 0;  // the step between rows, once an axis of more than one row has told it
    for (int32_t d = x.axes - 1; d-- > 0;) {
        if (x.shape[d] == 1) continue;
        if (!expected) a.x_stride = expected = x.strides[d];
        if (x.strides[d] != expected || expected < a.width) x.refuse("has rows that are not evenly spaced");
        expected *= x.shape[d];
    }
}

// True: with a residual.
bool set_facts(RowNorm& a, Object facts) {
    Facts f(facts);
    const int mode = f.take<int>();
    if (mode < 0 || mode > 2) throw nb::value_error("no such mode of a row norm");
    a.mode = (RowMode)mode;
    a.eps = f.take<double>();
    if (f.take<int64_t>() != a.width) throw Unfit("x has rows of another width than its norm");
    a.partial = f.take<int64_t>();
    if (a.partial < 1 || a.partial > a.width) throw Unfit("partial must lie in 1.." + std::to_string(a.width));
    if (a.mode != RowMode::rms && a.partial != a.width) throw Unfit("partial is for rms alone");
    a.offset_gain = f.take<bool>();
    a.round_before_gain = f.take<bool>();
    a.alpha = 1;
    if (!f.more()) return false;
    a.alpha = f.take<double>();
    a.drop = f.take<double>();
    a.seed = f.take<uint64_t>();
    return true;
}

int64_t gains(const RowNorm& a) { return a.mode == RowMode::scale ? 1 : a.width; }

void set_statistics(RowNorm& a, double* kept) {  // [mean (layer only) | 1 / deviation]
    a.mean = a.mode == RowMode::layer ? kept : nullptr;
    a.rstd = a.mode == RowMode::layer ? kept + a.rows : kept;
}
int64_t statistics_of(const RowNorm& a) { return a.mode == RowMode::layer ? 2 * a.rows : a.rows; }

// Of x's shape and dtype, dense.
char* dense_like(const Seen& x, const Seen& s) {
    if (!s.shaped(x)) s.refuse("has another shape than " + std::string(x.name));
    if (s.dtype != x.dtype) s.refuse("has another dtype than " + std::string(x.name));
    if (!s.dense()) s.refuse("is not dense");
    return s.data;
}
char* read_like(const Seen& x, const char* name, Object h) {
    return h.is_none() ? nullptr : dense_like(x, tensors.read(name, h.ptr()));
}
char* write_like(const Seen& x, const char* name, Object h) {
    return h.is_none() ? nullptr : dense_like(x, tensors.write(name, h.ptr()));
}

// y (and with a branch the stream) is written; the statistics go into the tensor given for them or come back as bytes.
nb::object row_forward(Object x, Object branch, Object weight, Object bias, Object mask, Object statistics, Object y,
                       Object stream, Object facts, int threads) {
    RowNorm a{};
    const Seen of_x = tensors.read("x", x.ptr());
    set_rows(a, of_x);
    if (set_facts(a, facts) != !branch.is_none()) throw nb::value_error("a branch and its facts come together");
    Parameters p;
    a.weight = p.read("weight", weight, gains(a));
    a.bias = p.read("bias", bias, a.width);
    a.param_dtype = p.dtype;
    a.mask = (const uint8_t*)tensors.mask("mask", mask.ptr(), a.rows).data;
    a.branch = read_like(of_x, "branch", branch);
    a.y = dense_like(of_x, tensors.write("y", y.ptr()));
    if (a.branch) a.stream = dense_like(of_x, tensors.write("stream", stream.ptr()));
    Statistics kept;
    set_statistics(a, kept.at(statistics, statistics_of(a)));
    a.threads = threads;
    {
        nb::gil_scoped_release released;
        chosen->table->row_forward(a);
    }
    return kept.made;
}

// x is the stream when there was a residual. dbranch None: it equals dx.
void row_backward(Object x, Object weight, Object mask, Object statistics, Object grad, Object grad_stream, Object dx,
                  Object dbranch, Object dweight, Object dbias, Object facts, int threads) {
    RowNorm a{};
    const Seen of_x = tensors.read("x", x.ptr());
    set_rows(a, of_x);
    if (set_facts(a, facts)) {
        if (!of_x.dense()) of_x.refuse("is not dense");
        a.branch = a.stream = (void*)a.x;  // only its presence matters: backward reads the stream
        if (dbranch.is_none() && !(a.alpha == 1 && a.drop == 0)) throw nb::value_error("dbranch is missing");
    }
    Parameters p;
    a.weight = p.read("weight", weight, gains(a));
    a.dweight = p.write("dweight", dweight, gains(a));
    a.dbias = p.write("dbias", dbias, a.width);
    a.param_dtype = p.dtype;
    a.mask = (const uint8_t*)tensors.mask("mask", mask.ptr(), a.rows).data;
    a.grad = dense_like(of_x, tensors.read("the gradient", grad.ptr()));
    a.grad_stream = read_like(of_x, "the gradient of the stream", grad_stream);
    a.dx = dense_like(of_x, tensors.write("dx", dx.ptr()));
    a.dbranch = write_like(of_x, "dbranch", dbranch);
    if (statistics.is_none()) throw Unfit("the statistics are missing");
    Statistics kept;
    set_statistics(a, kept.at(statistics, statistics_of(a)));
    a.threads = threads;
    nb::gil_scoped_release released;
    chosen->table->row_backward(a);
}

// Would row_forward take these? For callers who must not begin (draw a seed) and then be refused.
bool fits_residual(Object x, Object branch, Object weight, Object bias) {
    try {
        RowNorm a{};
        const Seen of_x = tensors.read("x", x.ptr());
        set_rows(a, of_x);
        read_like(of_x, "branch", branch);
        Parameters p;
        p.read("weight", weight, a.width);
        p.read("bias", bias, a.width);
        return true;
    } catch (const Unfit&) {
        return false;
    }
}

// ---- columns ----

// How x lies in memory, from its own shape and strides: row-major, or with the channels innermost ("channels last").
void set_layout(ColumnNorm& a, const Seen& x, Object facts) {
    Facts f(facts);
    a.eps = f.take<double>();
    a.offset_gain = f.take<bool>();
    a.centered = f.take<bool>();
    const int channel = f.take<int>();
    a.groups = f.take<int64_t>();
    a.pooled = f.take<bool>();
    a.x = x.data;
    a.dtype = x.dtype;
    if (channel < 1 || channel >= x.axes) x.refuse("has no such channel axis");
    a.channels = x.shape[channel];
    if (a.groups < 1 || a.channels < 1 || a.channels % a.groups) x.refuse("has channels that the groups do not divide");
    const bool last = channel == x.axes - 1;
    if (!a.pooled && channel != 1 && !last) x.refuse("has its samples not next to its channels");
    int64_t outer = 1, inner = 1;
    for (int d = 0; d < x.axes; ++d)
        if (d != channel) (d < channel ? outer : inner) *= x.shape[d];
    a.planes = false;
    if (x.dense()) {
        if (!last) a.planes = true;
    } else {
        int64_t step = a.channels;
        if (a.channels != 1 && x.strides[channel] != 1) x.refuse("is neither dense nor channels last");
        for (int d = x.axes; d-- > 0;) {
            if (d == channel) continue;
            if (x.shape[d] != 1 && x.strides[d] != step) x.refuse("is neither dense nor channels last");
            step *= x.shape[d];
        }
    }
    const int64_t positions = outer * inner;
    if (a.planes) { a.segments = outer; a.rows = inner; }
    else if (a.pooled) { a.segments = 1; a.rows = positions; }
    else { a.segments = x.shape[0]; a.rows = a.segments ? positions / a.segments : 0; }
}

// Of x's shape and dtype and in the same order in memory.
char* laid_out_like(const Seen& x, const Seen& s) {
    if (!s.shaped(x)) s.refuse("has another shape than " + std::string(x.name));
    if (s.dtype != x.dtype) s.refuse("has another dtype than " + std::string(x.name));
    for (int32_t d = 0; d < x.axes && x.size; ++d)
        if (x.shape[d] != 1 && s.strides[d] != x.strides[d]) s.refuse("lies in memory in another order than " + std::string(x.name));
    return s.data;
}

int64_t sets(const ColumnNorm& a) { return a.pooled ? 1 : a.segments; }
void set_statistics(ColumnNorm& a, double* kept) {  // [mean | square | count]
    a.mean = kept;
    a.var = kept + sets(a) * a.groups;
    a.count = a.var + sets(a) * a.groups;
}
int64_t statistics_of(const ColumnNorm& a) { return sets(a) * (2 * a.groups + 1); }

// Running mean and variance that a kernel may move: of one dtype, dense, a value per channel.
void set_running(ColumnNorm& a, Object mean, Object variance) {
    Parameters p;
    a.running_mean = p.write("running_mean", mean, a.channels);
    a.running_var = p.write("running_var", variance, a.channels);
    a.running_dtype = p.dtype;
}
bool fits_running(Object mean, Object variance, int64_t channels) {
    try {
        ColumnNorm a{};
        a.channels = channels;
        set_running(a, mean, variance);
        return true;
    } catch (const Unfit&) {
        return false;
    }
}

// The statistics are read from `statistics` when they are `given`, else written there or returned as bytes. y None: moments only.
// running: None, or (mean, variance, factor) to be moved.
nb::object column_forward(Object x, Object weight, Object bias, Object mask, Object statistics, bool given, Object y,
                          Object running, Object facts, int threads) {
    ColumnNorm a{};
    const Seen of_x = tensors.read("x", x.ptr());
    set_layout(a, of_x, facts);
    a.given = given;
    Parameters p;
    a.weight = p.read("weight", weight, a.channels);
    a.bias = p.read("bias", bias, a.channels);
    a.param_dtype = p.dtype;
    a.mask = (const uint8_t*)tensors.mask("mask", mask.ptr(), a.channels ? of_x.size / a.channels : 0).data;
    if (!y.is_none()) a.y = laid_out_like(of_x, tensors.write("y", y.ptr()));
    if (given && statistics.is_none()) throw Unfit("the statistics are missing");
    if (!running.is_none()) {
        if (!a.pooled || a.groups != a.channels || given) throw nb::value_error("running statistics are those of a batch");
        Facts r(running);
        const Object mean = r.take<nb::object>(), variance = r.take<nb::object>();
        set_running(a, mean, variance);
        a.factor = r.take<double>();
    }
    Statistics kept;
    set_statistics(a, kept.at(statistics, statistics_of(a)));
    a.threads = threads;
    {
        nb::gil_scoped_release released;
        if (!a.y) chosen->table->column_moments(a);
        else if (of_x.size || !given) chosen->table->column_forward(a);
    }
    return kept.made;
}

// dx None: only the sums are taken. coefficients: dx from them instead of from the sums (see kernels.h).
void column_backward(Object x, Object weight, Object mask, Object statistics, bool given, Object grad, Object dx, Object dweight,
                     Object dbias, Object sums, Object coefficients, Object facts, int threads) {
    ColumnNorm a{};
    const Seen of_x = tensors.read("x", x.ptr());
    set_layout(a, of_x, facts);
    a.given = given;
    Parameters p;
    a.weight = p.read("weight", weight, a.channels);
    a.dweight = p.write("dweight", dweight, a.channels);
    a.dbias = p.write("dbias", dbias, a.channels);
    a.param_dtype = p.dtype;
    a.mask = (const uint8_t*)tensors.mask("mask", mask.ptr(), of_x.size / a.channels).data;
    a.grad = laid_out_like(of_x, tensors.read("the gradient", grad.ptr()));
    if (statistics.is_none()) throw Unfit("the statistics are missing");
    Statistics kept;
    set_statistics(a, kept.at(statistics, statistics_of(a)));
    const int64_t wide = sets(a) * a.channels;
    if ((a.sum_grad = doubles_in("the sums", sums, 2 * wide))) a.sum_grad_xhat = a.sum_grad + wide;
    if ((a.direct = doubles_in("the coefficients", coefficients, 3 * wide))) {
        a.along = a.direct + wide;
        a.offset = a.along + wide;
    }
    if (!dx.is_none()) a.dx = laid_out_like(of_x, tensors.write("dx", dx.ptr()));
    else if (!a.sum_grad) throw nb::value_error("neither dx nor sums are wanted");
    if (a.direct && !a.sum_grad) throw nb::value_error("coefficients come with sums");
    a.threads = threads;
    nb::gil_scoped_release released;
    if (!a.dx) chosen->table->column_backward_sums(a);
    else if (a.direct) chosen->table->column_backward_apply(a);
    else chosen->table->column_backward(a);
}

// ---- pointwise ----

void set_pointwise(Pointwise& a, const Seen& x, Parameters& p, Object alpha, Object shift, Object weight, Object mask, bool erf,
                   int threads) {
    if (!x.axes || x.last < 1) x.refuse("has no features");
    if (!x.dense()) x.refuse("is not dense");
    a.x = x.data; a.dtype = x.dtype; a.width = x.last; a.rows = x.size / x.last; a.erf = erf; a.threads = threads;
    a.alpha = p.read_scalar("alpha", alpha);
    if (!a.alpha) throw Unfit("alpha is missing");
    a.shift = p.read_scalar("shift", shift);
    a.weight = p.read("weight", weight, a.width);
    a.mask = (const uint8_t*)tensors.mask("mask", mask.ptr(), a.rows).data;
}

void pointwise_forward(Object x, Object alpha, Object shift, Object weight, Object bias, Object mask, Object y, bool erf,
                       int threads) {
    Pointwise a{};
    Parameters p;
    const Seen of_x = tensors.read("x", x.ptr());
    set_pointwise(a, of_x, p, alpha, shift, weight, mask, erf, threads);
    a.bias = p.read("bias", bias, a.width);
    a.param_dtype = p.dtype;
    a.y = dense_like(of_x, tensors.write("y", y.ptr()));
    nb::gil_scoped_release released;
    chosen->table->pointwise_forward(a);
}

void pointwise_backward(Object x, Object alpha, Object shift, Object weight, Object mask, Object grad, Object dx, Object dalpha,
                        Object dshift, Object dweight, Object dbias, bool erf, int threads) {
    Pointwise a{};
    Parameters p;
    const Seen of_x = tensors.read("x", x.ptr());
    set_pointwise(a, of_x, p, alpha, shift, weight, mask, erf, threads);
    a.dalpha = p.write_scalar("dalpha", dalpha);
    a.dshift = p.write_scalar("dshift", dshift);
    a.dweight = p.write("dweight", dweight, a.width);
    a.dbias = p.write("dbias", dbias, a.width);
    a.param_dtype = p.dtype;
    a.grad = dense_like(of_x, tensors.read("the gradient", grad.ptr()));
    a.dx = dense_like(of_x, tensors.write("dx", dx.ptr()));
    nb::gil_scoped_release released;
    chosen->table->pointwise_backward(a);
}

}  // namespace

NB_MODULE(_native, m) {
    chosen = best_isa();
    m.def("isas", [] {
        std::vector<std::pair<std::string, bool>> all;
        for (const Isa* isa = isas; isa->name; ++isa) all.emplace_back(isa->name, isa->supported());
        return all;
    }, "(name, does this machine have it) of every instruction set in this build, best first");
    m.def("isa", [] { return std::string(chosen->name); }, "the instruction set in use");
    m.def("use_isa", [](const std::string& name) {
        const Isa* isa = find_isa(name.c_str());
        if (!isa) throw std::invalid_argument("this build holds no instruction set named '" + name + "'");
        if (!isa->supported()) throw std::invalid_argument("this machine has no " + name);
        chosen = isa;
    });
    m.def("use_huge_pages", [](bool wanted) { huge_pages = wanted; }, "ask for huge pages under large outputs, or not");
    m.def("huge_pages", [] { return huge_pages; }, "are huge pages asked for?");
#ifdef _OPENMP
    m.attr("openmp") = true;
#else
    m.attr("openmp") = false;
#endif
    nb::exception<Unfit>(m, "Unfit", PyExc_RuntimeError);
    m.def("see_tensors", [](Object capsule, Object plain, Object is_neg) {
        return tensors.use(capsule.ptr(), plain.ptr(), is_neg.ptr());
    }, "torch's table for looking into tensors, the plain types, Tensor.is_neg; False: descriptions must be sent");
    const auto one = nb::arg();
    const auto maybe = nb::arg().none();  // None is taken, too
    m.def("fits_residual", &fits_residual, one, one, maybe, maybe);
    m.def("fits_running", &fits_running, one, one, one);
    m.def("row_forward", &row_forward, one, maybe, maybe, maybe, maybe, maybe, one, maybe, one, one);
    m.def("row_backward", &row_backward, one, maybe, maybe, one, one, maybe, one, maybe, maybe, maybe, one, one);
    m.def("column_forward", &column_forward, one, maybe, maybe, maybe, maybe, one, maybe, maybe, one, one);
    m.def("column_backward", &column_backward, one, maybe, maybe, one, one, one, maybe, maybe, maybe, maybe, maybe, one, one);
    m.def("pointwise_forward", &pointwise_forward, one, one, maybe, maybe, maybe, maybe, one, one, one);
    m.def("pointwise_backward", &pointwise_backward, one, one, maybe, maybe, maybe, one, one, maybe, maybe, maybe, maybe, one, one);
}
