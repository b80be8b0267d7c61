// Column norms: tensors are checked and described in the kernel's struct. No arithmetic.
#include "arguments.h"

namespace normlab {
namespace {

// How x lies in memory, from its own shape and strides: row-major, or with the channels innermost ("channels last"); and the
// mask of its positions.
void set_input(ColumnNorm& a, const Seen& x, Object mask, Object facts) {
    Items f("facts of a column norm", facts, 6);
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
    a.mask = (const uint8_t*)tensors.mask(mask.ptr(), x, channel).data;
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
int64_t columns(const ColumnNorm& a) { return sets(a) * a.channels; }
int64_t statistics_of(const ColumnNorm& a) { return sets(a) * (2 * a.groups + 1); }
void set_statistics(ColumnNorm& a, double* kept) {  // [mean | square | count]
    a.mean = kept;
    a.var = kept + sets(a) * a.groups;
    a.count = a.var + sets(a) * a.groups;
}

void set_parameters(ColumnNorm& a, Object weight, Object bias) {
    Parameters p;
    a.weight = p.read("weight", weight, a.channels);
    a.bias = p.read("bias", bias, a.channels);
    a.param_dtype = p.dtype;
}

// Running mean and variance that a kernel may move: of one dtype, dense, a value per channel.
void set_running(ColumnNorm& a, Object mean, Object variance) {
    Parameters p;
    a.running_mean = p.read_and_write("running_mean", mean, a.channels);
    a.running_var = p.read_and_write("running_var", variance, a.channels);
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

void run(void (*kernel)(const ColumnNorm&), ColumnNorm& a, int threads) {
    a.threads = threads;
    nb::gil_scoped_release released;
    kernel(a);
}

// ---- forward ----

// The statistics alone, written into the tensor given for them.
void column_moments(Object x, Object mask, Object statistics, Object facts, int threads) {
    ColumnNorm a{};
    const Seen of_x = tensors.read("x", x.ptr());
    set_input(a, of_x, mask, facts);
    set_statistics(a, doubles_in("the tensor of statistics", statistics, statistics_of(a)));
    run(chosen->table->column_moments, a, threads);
}

// results: (y, statistics); y is written, and so are the statistics, or with None they come back as bytes.
// running: None, or (mean, variance, factor) to be moved.
nb::object column_forward(Object x, Object weight, Object bias, Object mask, Object running, Object results, Object facts,
                          int threads) {
    ColumnNorm a{};
    const Seen of_x = tensors.read("x", x.ptr());
    set_input(a, of_x, mask, facts);
    set_parameters(a, weight, bias);
    Items written("results", results, 2);
    a.y = laid_out_like(of_x, tensors.write("y", written.object().ptr()));
    if (!running.is_none()) {
        if (!a.pooled || a.groups != a.channels) throw nb::value_error("running statistics are those of a batch");
        Items r("running statistics", running, 3);
        const Object mean = r.object(), variance = r.object();
        set_running(a, mean, variance);
        a.factor = r.take<double>();
    }
    Place kept;
    set_statistics(a, kept.at(written.object(), statistics_of(a)));
    run(chosen->table->column_forward, a, threads);
    return kept.made;
}

// y by statistics that are given: of evaluation, of all processes, running ones.
void column_apply(Object x, Object weight, Object bias, Object mask, Object statistics, Object y, Object facts, int threads) {
    ColumnNorm a{};
    const Seen of_x = tensors.read("x", x.ptr());
    set_input(a, of_x, mask, facts);
    a.given = true;
    set_parameters(a, weight, bias);
    a.y = laid_out_like(of_x, tensors.write("y", y.ptr()));
    set_statistics(a, statistics_in(statistics, statistics_of(a)));
    if (of_x.size) run(chosen->table->column_forward, a, threads);
}

// ---- backward ----

// gradients: (dx, dweight, dbias), to be written; None where a parameter's is not wanted. `given`: as in column_apply, the
// statistics do not depend on x.
template <bool given>
void column_backward(Object grad, Object x, Object weight, Object mask, Object statistics, Object gradients, Object facts,
                     int threads) {
    ColumnNorm a{};
    const Seen of_x = tensors.read("x", x.ptr());
    set_input(a, of_x, mask, facts);
    a.given = given;
    Items written("gradients", gradients, 3);
    const Object dx = written.object(), dweight = written.object(), dbias = written.object();
    Parameters p;
    a.weight = p.read("weight", weight, a.channels);
    a.dweight = p.write("dweight", dweight, a.channels);
    a.dbias = p.write("dbias", dbias, a.channels);
    a.param_dtype = p.dtype;
    a.grad = laid_out_like(of_x, tensors.read("the gradient", grad.ptr()));
    set_statistics(a, statistics_in(statistics, statistics_of(a)));
    a.dx = laid_out_like(of_x, tensors.write("dx", dx.ptr()));
    run(chosen->table->column_backward, a, threads);
}

// sums (2, sets, channels) of grad and grad * xhat, to be written. The weight does not enter them; it is checked for callers
// who then multiply by it with torch's operators, which trust the memory of a tensor.
void column_sums(Object grad, Object x, Object weight, Object mask, Object statistics, Object sums, Object facts, int threads) {
    ColumnNorm a{};
    const Seen of_x = tensors.read("x", x.ptr());
    set_input(a, of_x, mask, facts);
    set_parameters(a, weight, nb::none());
    a.grad = laid_out_like(of_x, tensors.read("the gradient", grad.ptr()));
    set_statistics(a, statistics_in(statistics, statistics_of(a)));
    a.sum_grad = doubles_in("the sums", sums, 2 * columns(a));
    a.sum_grad_xhat = a.sum_grad + columns(a);
    run(chosen->table->column_backward_sums, a, threads);
}

// dx = c[0] * grad + c[1] * xhat + c[2] for coefficients c (3, sets, channels).
void column_combine(Object grad, Object x, Object mask, Object statistics, Object coefficients, Object dx, Object facts,
                    int threads) {
    ColumnNorm a{};
    const Seen of_x = tensors.read("x", x.ptr());
    set_input(a, of_x, mask, facts);
    a.grad = laid_out_like(of_x, tensors.read("the gradient", grad.ptr()));
    set_statistics(a, statistics_in(statistics, statistics_of(a)));
    a.direct = doubles_in("the coefficients", coefficients, 3 * columns(a));
    a.along = a.direct + columns(a);
    a.offset = a.along + columns(a);
    a.dx = laid_out_like(of_x, tensors.write("dx", dx.ptr()));
    run(chosen->table->column_backward_apply, a, threads);
}

}  // namespace

void bind_columns(nb::module_& m) {
    const auto one = nb::arg();
    const auto maybe = nb::arg().none();  // None is taken, too
    m.def("fits_running", &fits_running, one, one, one);
    m.def("column_moments", &column_moments, one, maybe, one, one, one);
    m.def("column_forward", &column_forward, one, maybe, maybe, maybe, maybe, one, one, one);
    m.def("column_apply", &column_apply, one, maybe, maybe, maybe, maybe, one, one, one);
    m.def("column_backward", &column_backward<false>, one, one, maybe, maybe, maybe, one, one, one);
    m.def("column_apply_backward", &column_backward<true>, one, one, maybe, maybe, maybe, one, one, one);
    m.def("column_sums", &column_sums, one, one, maybe, maybe, maybe, one, one, one);
    m.def("column_combine", &column_combine, one, one, maybe, maybe, one, one, one, one);
}

}  // namespace normlab
