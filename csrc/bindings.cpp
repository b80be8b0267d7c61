// The only file that knows Python (with tensors.h). No arithmetic: addresses and sizes go in as integers, the GIL is released.
//
// Integers rather than array objects: the caller (kernels/cpu.py) has checked dtype, device and layout already, and
// an array handshake per argument costs more than a small norm. The thin functions take tensors: everyday row norms, where
// checks are the larger part of the time (see tensors.h).
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <nanobind/stl/pair.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "dispatch.h"
#include "tensors.h"

namespace nb = nanobind;
using namespace normlab;

namespace {

typedef uintptr_t Address;
const Isa* chosen = nullptr;
Tensors tensors;

template <class P> P* at(Address a) { return (P*)a; }

// Room for statistics in a bytes object: a tenth of the price of a tensor.
nb::object doubles(int64_t count) {
    nb::object room = nb::steal(PyBytes_FromStringAndSize(nullptr, count * (int64_t)sizeof(double)));
    if (!room.is_valid()) nb::raise_python_error();
    return room;
}
// Where statistics lie: the bytes a forward returned, or an address.
Address address_of(nb::handle statistics) {
    return PyBytes_Check(statistics.ptr()) ? (Address)PyBytes_AS_STRING(statistics.ptr()) : nb::cast<Address>(statistics);
}

RowNorm row_norm(int64_t rows, int64_t width, int64_t x_stride, int64_t partial, int dtype, int param_dtype, int mode,
                 double eps, bool offset_gain, bool round_before_gain, int threads, Address mask, Address weight,
                 Address bias, Address x, Address statistics) {
    RowNorm a{};
    a.rows = rows; a.width = width; a.x_stride = x_stride; a.partial = partial;
    a.dtype = (DType)dtype; a.param_dtype = (DType)param_dtype; a.mode = (RowMode)mode; a.eps = eps;
    a.offset_gain = offset_gain; a.round_before_gain = round_before_gain; a.threads = threads;
    a.mask = at<const uint8_t>(mask); a.weight = at<void>(weight); a.bias = at<void>(bias); a.x = at<void>(x);
    double* kept = at<double>(statistics);  // [mean (layer only) | rstd]
    a.mean = a.mode == RowMode::layer ? kept : nullptr;
    a.rstd = a.mode == RowMode::layer ? kept + rows : kept;
    a.alpha = 1;
    return a;
}

// The statistics go to the address given or, when it is 0, into a bytes object that is returned (else None).
nb::object row_forward(int64_t rows, int64_t width, int64_t x_stride, int64_t partial, int dtype, int param_dtype, int mode,
                 double eps, bool offset_gain, bool round_before_gain, int threads, Address mask, Address weight,
                 Address bias, Address x, Address statistics, Address y, Address branch, Address stream, double alpha,
                 double drop, uint64_t seed) {
    nb::object kept = nb::none();
    if (!statistics) {
        kept = doubles((RowMode)mode == RowMode::layer ? 2 * rows : rows);
        statistics = (Address)PyBytes_AS_STRING(kept.ptr());
    }
    nb::gil_scoped_release released;
    RowNorm a = row_norm(rows, width, x_stride, partial, dtype, param_dtype, mode, eps, offset_gain, round_before_gain,
                         threads, mask, weight, bias, x, statistics);
    a.y = at<void>(y); a.branch = at<void>(branch); a.stream = at<void>(stream);
    a.alpha = alpha; a.drop = drop; a.seed = seed;
    chosen->table->row_forward(a);
    return kept;
}

void row_backward(int64_t rows, int64_t width, int64_t x_stride, int64_t partial, int dtype, int param_dtype, int mode,
                  double eps, bool offset_gain, bool round_before_gain, int threads, Address mask, Address weight,
                  Address x, nb::handle statistics, Address grad, Address dx, Address dweight, Address dbias,
                  bool residual, Address grad_stream, Address dbranch, double alpha, double drop, uint64_t seed) {
    const Address kept = address_of(statistics);
    nb::gil_scoped_release released;
    RowNorm a = row_norm(rows, width, x_stride, partial, dtype, param_dtype, mode, eps, offset_gain, round_before_gain,
                         threads, mask, weight, 0, x, kept);
    a.grad = at<void>(grad); a.dx = at<void>(dx); a.dweight = at<void>(dweight); a.dbias = at<void>(dbias);
    if (residual) {
        a.branch = at<void>(x);  // only its presence matters: backward reads the stream
        a.stream = at<void>(x);
    }
    a.grad_stream = at<void>(grad_stream); a.dbranch = at<void>(dbranch);
    a.alpha = alpha; a.drop = drop; a.seed = seed;
    chosen->table->row_backward(a);
}

// ---- thin: dense tensors, no mask ----

// A parameter or the place for its gradient: where it lies (0: there is none), and its dtype (none: that of `other`).
struct Parameter {
    bool fits = true;
    Address address = 0;
    DType dtype;
    // `size`: how many values it must have, along one axis.
    Parameter(nb::handle h, int64_t size, DType other = DType::f32) : dtype(other) {
        Tensors::Dense of;
        if (h.is_none()) return;
        fits = tensors.look(h.ptr(), of) && of.axes == 1 && of.size == size;
        if (!fits) return;
        address = (Address)of.data;
        dtype = of.dtype;
    }
};
int64_t gains(int mode, int64_t width) { return (RowMode)mode == RowMode::scale ? 1 : width; }

// Would the thin functions take these? Weight and bias may be None.
bool fits_rows(nb::handle x, nb::handle weight, nb::handle bias, int64_t width, bool one_gain) {
    Tensors::Dense of_x;
    if (!tensors.look(x.ptr(), of_x) || of_x.last != width || width < 1) return false;
    const Parameter w(weight, one_gain ? 1 : width), b(bias, width, w.dtype);
    return w.fits && b.fits && (weight.is_none() || b.dtype == w.dtype);
}
bool fits_residual(nb::handle x, nb::handle branch, nb::handle weight, nb::handle bias, int64_t width) {
    Tensors::Dense of_x, of_branch;
    return tensors.look(x.ptr(), of_x) && tensors.look(branch.ptr(), of_branch) && of_x.like(of_branch) &&
           fits_rows(x, weight, bias, width, false);
}

// The description of a norm over the rows of a tensor; what is read and written comes on top. `partial` 0: all values.
RowNorm rows_of(const Tensors::Dense& x, const Parameter& weight, DType param_dtype, Address statistics, int mode, double eps,
                int64_t partial, bool offset_gain, bool round_before_gain, int threads) {
    return row_norm(x.size / x.last, x.last, x.last, partial ? partial : x.last, (int)x.dtype, (int)param_dtype, mode, eps,
                    offset_gain, round_before_gain, threads, 0, weight.address, 0, (Address)x.data, statistics);
}

// y (and with a branch the stream) is written; the statistics come back as bytes. None when a tensor does not fit.
nb::object thin_forward(nb::handle x, nb::handle branch, nb::handle weight, nb::handle bias, nb::handle y, nb::handle stream,
                        int mode, double eps, int64_t partial, bool offset_gain, bool round_before_gain, double alpha,
                        double drop, uint64_t seed, int threads) {
    Tensors::Dense of_x, of_branch{}, of_y, of_stream{};
    const auto fits = [&](nb::handle h, Tensors::Dense& of) { return tensors.look(h.ptr(), of) && of.like(of_x); };
    if (!tensors.look(x.ptr(), of_x) || of_x.last < 1 || !fits(y, of_y)) return nb::none();
    if (!branch.is_none() && !(fits(branch, of_branch) && fits(stream, of_stream))) return nb::none();
    const Parameter w(weight, gains(mode, of_x.last)), b(bias, of_x.last, w.dtype);
    if (!w.fits || !b.fits) return nb::none();
    const int64_t rows = of_x.size / of_x.last;
    nb::object kept = doubles((RowMode)mode == RowMode::layer ? 2 * rows : rows);
    RowNorm a = rows_of(of_x, w, b.dtype, (Address)PyBytes_AS_STRING(kept.ptr()), mode, eps, partial, offset_gain,
                        round_before_gain, threads);
    a.bias = at<void>(b.address); a.y = of_y.data; a.branch = of_branch.data; a.stream = of_stream.data;
    a.alpha = alpha; a.drop = drop; a.seed = seed;
    nb::gil_scoped_release released;
    chosen->table->row_forward(a);
    return kept;
}

// x: what was normalized, the stream after a residual sum. dx, dbranch (None: it equals dx), dweight and dbias are
// written. False when a tensor does not fit.
bool thin_backward(nb::handle x, nb::handle weight, nb::handle statistics, nb::handle grad, nb::handle grad_stream,
                   nb::handle dx, nb::handle dbranch, nb::handle dweight, nb::handle dbias, bool residual, int mode, double eps,
                   int64_t partial, bool offset_gain, bool round_before_gain, double alpha, double drop, uint64_t seed,
                   int threads) {
    Tensors::Dense of_x, of_grad, of_grad_stream{}, of_dx, of_dbranch{};
    const auto fits = [&](nb::handle h, Tensors::Dense& of) { return tensors.look(h.ptr(), of) && of.like(of_x); };
    if (!tensors.look(x.ptr(), of_x) || of_x.last < 1 || !fits(grad, of_grad) || !fits(dx, of_dx)) return false;
    if (!grad_stream.is_none() && !fits(grad_stream, of_grad_stream)) return false;
    if (!dbranch.is_none() && !fits(dbranch, of_dbranch)) return false;
    const int64_t count = gains(mode, of_x.last);
    const Parameter w(weight, count), dw(dweight, count, w.dtype), db(dbias, of_x.last, dw.dtype);
    if (!w.fits || !dw.fits || !db.fits) return false;
    RowNorm a = rows_of(of_x, w, db.dtype, address_of(statistics), mode, eps, partial, offset_gain, round_before_gain, threads);
    if (residual) a.branch = a.stream = of_x.data;  // only its presence matters: backward reads the stream
    a.grad = of_grad.data; a.grad_stream = of_grad_stream.data; a.dx = of_dx.data; a.dbranch = of_dbranch.data;
    a.dweight = at<void>(dw.address); a.dbias = at<void>(db.address);
    a.alpha = alpha; a.drop = drop; a.seed = seed;
    nb::gil_scoped_release released;
    chosen->table->row_backward(a);
    return true;
}

ColumnNorm column_norm(int64_t segments, int64_t rows, int64_t channels, int64_t groups, bool planes, bool pooled,
                       bool centered, bool given, int dtype, int param_dtype, double eps, bool offset_gain, int threads,
                       Address mask, Address weight, Address bias, Address x, Address statistics) {
    ColumnNorm a{};
    a.segments = segments; a.rows = rows; a.channels = channels; a.groups = groups; a.planes = planes;
    a.pooled = pooled; a.centered = centered; a.given = given; a.dtype = (DType)dtype;
    a.param_dtype = (DType)param_dtype; a.eps = eps; a.offset_gain = offset_gain; a.threads = threads;
    a.mask = at<const uint8_t>(mask); a.weight = at<void>(weight); a.bias = at<void>(bias); a.x = at<void>(x);
    const int64_t values = (pooled ? 1 : segments) * groups;
    a.mean = at<double>(statistics);  // [mean | square | count]
    a.var = a.mean + values;
    a.count = a.var + values;
    return a;
}

// The statistics go to the address given or, when it is 0, into a bytes object that is returned (else None).
nb::object column_forward(int64_t segments, int64_t rows, int64_t channels, int64_t groups, bool planes, bool pooled,
                          bool centered, bool given, int dtype, int param_dtype, double eps, bool offset_gain,
                          int threads, Address mask, Address weight, Address bias, Address x, Address statistics,
                          Address y, Address running_mean, Address running_var, int running_dtype, double factor) {
    nb::object kept = nb::none();
    if (!statistics) {
        kept = doubles((pooled ? 1 : segments) * (2 * groups + 1));
        statistics = (Address)PyBytes_AS_STRING(kept.ptr());
    }
    nb::gil_scoped_release released;
    ColumnNorm a = column_norm(segments, rows, channels, groups, planes, pooled, centered, given, dtype, param_dtype,
                               eps, offset_gain, threads, mask, weight, bias, x, statistics);
    a.y = at<void>(y); a.running_mean = at<void>(running_mean); a.running_var = at<void>(running_var);
    a.running_dtype = (DType)running_dtype; a.factor = factor;
    if (y) chosen->table->column_forward(a);
    else chosen->table->column_moments(a);
    return kept;
}

void column_backward(int64_t segments, int64_t rows, int64_t channels, int64_t groups, bool planes, bool pooled,
                     bool centered, bool given, int dtype, int param_dtype, double eps, bool offset_gain, int threads,
                     Address mask, Address weight, Address x, nb::handle statistics, Address grad, Address sum_grad,
                     Address sum_grad_xhat, bool sums, bool apply, Address direct, Address along, Address offset,
                     Address dx, Address dweight, Address dbias) {
    const Address kept = address_of(statistics);
    nb::gil_scoped_release released;
    ColumnNorm a = column_norm(segments, rows, channels, groups, planes, pooled, centered, given, dtype, param_dtype,
                               eps, offset_gain, threads, mask, weight, 0, x, kept);
    a.grad = at<void>(grad); a.sum_grad = at<double>(sum_grad); a.sum_grad_xhat = at<double>(sum_grad_xhat);
    a.direct = at<double>(direct); a.along = at<double>(along); a.offset = at<double>(offset);
    a.dx = at<void>(dx); a.dweight = at<void>(dweight); a.dbias = at<void>(dbias);
    if (sums && apply) chosen->table->column_backward(a);
    else if (sums) chosen->table->column_backward_sums(a);
    else chosen->table->column_backward_apply(a);
}

Pointwise pointwise(int64_t rows, int64_t width, int dtype, int param_dtype, bool erf, int threads, Address mask,
                    Address alpha, Address shift, Address weight, Address bias, Address x) {
    Pointwise a{};
    a.rows = rows; a.width = width; a.dtype = (DType)dtype; a.param_dtype = (DType)param_dtype; a.erf = erf;
    a.threads = threads; a.mask = at<const uint8_t>(mask); a.alpha = at<void>(alpha); a.shift = at<void>(shift);
    a.weight = at<void>(weight); a.bias = at<void>(bias); a.x = at<void>(x);
    return a;
}

void pointwise_forward(int64_t rows, int64_t width, int dtype, int param_dtype, bool erf, int threads, Address mask,
                       Address alpha, Address shift, Address weight, Address bias, Address x, Address y) {
    Pointwise a = pointwise(rows, width, dtype, param_dtype, erf, threads, mask, alpha, shift, weight, bias, x);
    a.y = at<void>(y);
    chosen->table->pointwise_forward(a);
}

void pointwise_backward(int64_t rows, int64_t width, int dtype, int param_dtype, bool erf, int threads, Address mask,
                        Address alpha, Address shift, Address weight, Address x, Address grad, Address dx,
                        Address dalpha, Address dshift, Address dweight, Address dbias) {
    Pointwise a = pointwise(rows, width, dtype, param_dtype, erf, threads, mask, alpha, shift, weight, 0, x);
    a.grad = at<void>(grad); a.dx = at<void>(dx); a.dalpha = at<void>(dalpha); a.dshift = at<void>(dshift);
    a.dweight = at<void>(dweight); a.dbias = at<void>(dbias);
    chosen->table->pointwise_backward(a);
}

}  // namespace

NB_MODULE(_native, m) {
    typedef nb::call_guard<nb::gil_scoped_release> Released;
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
    m.def("see_tensors", [](nb::handle capsule) { return tensors.use(capsule.ptr()); },
          "give the thin functions torch's table for looking into tensors; False: they cannot be used");
    const auto one = nb::arg();
    const auto maybe = nb::arg().none();  // None is taken, too
    m.def("fits_rows", &fits_rows, one, maybe, maybe, one, one);
    m.def("fits_residual", &fits_residual, one, one, maybe, maybe, one);
    m.def("thin_forward", &thin_forward, one, maybe, maybe, maybe, one, maybe, one, one, one, one, one, one, one, one, one);
    m.def("thin_backward", &thin_backward, one, maybe, one, one, maybe, one, maybe, maybe, maybe, one, one, one, one, one, one,
          one, one, one, one);
    m.def("row_forward", &row_forward);
    m.def("row_backward", &row_backward);
    m.def("column_forward", &column_forward);
    m.def("column_backward", &column_backward);
    m.def("pointwise_forward", &pointwise_forward, Released());
    m.def("pointwise_backward", &pointwise_backward, Released());
}
