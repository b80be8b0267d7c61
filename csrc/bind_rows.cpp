// Row norms, alone and with the residual sum in front: tensors are checked and described in the kernel's struct. No arithmetic.
#include "arguments.h"

namespace normlab {
namespace {

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

constexpr const char* modes[] = {"layer", "rms", "scale"};  // in the order of RowMode

void check_width(const RowNorm& a, int64_t width) {
    if (width != a.width) throw Unfit("x has rows of another width than its norm");
}

void set_row_facts(RowNorm& a, Object facts) {
    Items f("facts of a row norm", facts, 6);
    a.mode = (RowMode)f.word(modes);
    a.eps = f.take<double>();
    check_width(a, f.take<int64_t>());
    a.partial = f.take<int64_t>();
    if (a.partial < 1 || a.partial > a.width) throw Unfit("partial must lie in 1.." + std::to_string(a.width));
    if (a.mode != RowMode::rms && a.partial != a.width) throw Unfit("partial is for rms alone");
    a.offset_gain = f.take<bool>();
    a.round_before_gain = f.take<bool>();
    a.alpha = 1;
}

void set_residual_facts(RowNorm& a, Object facts) {
    Items f("facts of a residual norm", facts, 8);
    a.mode = (RowMode)f.word(modes);
    a.eps = f.take<double>();
    check_width(a, f.take<int64_t>());
    a.partial = a.width;
    a.offset_gain = f.take<bool>();
    a.round_before_gain = f.take<bool>();
    a.alpha = f.take<double>();
    a.drop = f.take<double>();
    a.seed = f.take<uint64_t>();
}

int64_t gains(const RowNorm& a) { return a.mode == RowMode::scale ? 1 : a.width; }

void set_statistics(RowNorm& a, double* kept) {  // [mean (layer only) | 1 / deviation]
    a.mean = a.mode == RowMode::layer ? kept : nullptr;
    a.rstd = a.mode == RowMode::layer ? kept + a.rows : kept;
}
int64_t statistics_of(const RowNorm& a) { return a.mode == RowMode::layer ? 2 * a.rows : a.rows; }

void set_parameters(RowNorm& a, Object weight, Object bias) {
    Parameters p;
    a.weight = p.read("weight", weight, gains(a));
    a.bias = p.read("bias", bias, a.width);
    a.param_dtype = p.dtype;
}

void set_parameters_and_gradients(RowNorm& a, Object weight, Object dweight, Object dbias) {
    Parameters p;
    a.weight = p.read("weight", weight, gains(a));
    a.dweight = p.write("dweight", dweight, gains(a));
    a.dbias = p.write("dbias", dbias, a.width);
    a.param_dtype = p.dtype;
}

void set_mask(RowNorm& a, const Seen& x, Object mask) { a.mask = (const uint8_t*)tensors.mask(mask.ptr(), x, x.axes - 1).data; }

void forward(RowNorm& a, int threads) {
    a.threads = threads;
    nb::gil_scoped_release released;
    chosen->table->row_forward(a);
}
void backward(RowNorm& a, int threads) {
    a.threads = threads;
    nb::gil_scoped_release released;
    chosen->table->row_backward(a);
}

// y is written; the statistics go into the tensor given for them or come back as bytes.
nb::object row_forward(Object x, Object weight, Object bias, Object mask, Object statistics, Object y, Object facts, int threads) {
    RowNorm a{};
    const Seen of_x = tensors.read("x", x.ptr());
    set_rows(a, of_x);
    set_row_facts(a, facts);
    set_parameters(a, weight, bias);
    set_mask(a, of_x, mask);
    a.y = dense_like(of_x, tensors.write("y", y.ptr()));
    Place kept;
    set_statistics(a, kept.at(statistics, statistics_of(a)));
    forward(a, threads);
    return kept.made;
}

// gradients: (dx, dweight, dbias), to be written; None where a parameter's is not wanted.
void row_backward(Object grad, Object x, Object weight, Object mask, Object statistics, Object gradients, Object facts, int threads) {
    RowNorm a{};
    const Seen of_x = tensors.read("x", x.ptr());
    set_rows(a, of_x);
    set_row_facts(a, facts);
    Items written("gradients", gradients, 3);
    const Object dx = written.object(), dweight = written.object(), dbias = written.object();
    set_parameters_and_gradients(a, weight, dweight, dbias);
    set_mask(a, of_x, mask);
    a.grad = dense_like(of_x, tensors.read("the gradient", grad.ptr()));
    a.dx = dense_like(of_x, tensors.write("dx", dx.ptr()));
    set_statistics(a, statistics_in(statistics, statistics_of(a)));
    backward(a, threads);
}

// results: (y, stream, statistics); the first two are written, the last as in row_forward.
nb::object residual_forward(Object x, Object branch, Object weight, Object bias, Object mask, Object results, Object facts,
                            int threads) {
    RowNorm a{};
    const Seen of_x = tensors.read("x", x.ptr());
    set_rows(a, of_x);
    set_residual_facts(a, facts);
    set_parameters(a, weight, bias);
    set_mask(a, of_x, mask);
    a.branch = dense_like(of_x, tensors.read("branch", branch.ptr()));
    Items written("results", results, 3);
    a.y = dense_like(of_x, tensors.write("y", written.object().ptr()));
    a.stream = dense_like(of_x, tensors.write("stream", written.object().ptr()));
    Place kept;
    set_statistics(a, kept.at(written.object(), statistics_of(a)));
    forward(a, threads);
    return kept.made;
}

// grads: those of (y, stream), the latter or None. gradients: (dx, dbranch, dweight, dbias); dbranch None: it equals dx.
void residual_backward(Object grads, Object stream, Object weight, Object mask, Object statistics, Object gradients, Object facts,
                       int threads) {
    RowNorm a{};
    const Seen of_stream = tensors.read("the stream", stream.ptr());
    set_rows(a, of_stream);
    set_residual_facts(a, facts);
    if (!of_stream.dense()) of_stream.refuse("is not dense");
    a.branch = a.stream = (void*)a.x;  // only its presence matters: backward reads the stream
    Items written("gradients", gradients, 4);
    const Object dx = written.object(), dbranch = written.object(), dweight = written.object(), dbias = written.object();
    if (dbranch.is_none() && !(a.alpha == 1 && a.drop == 0)) throw nb::value_error("dbranch is missing");
    set_parameters_and_gradients(a, weight, dweight, dbias);
    set_mask(a, of_stream, mask);
    Items above("gradients from above", grads, 2);
    a.grad = dense_like(of_stream, tensors.read("the gradient", above.object().ptr()));
    a.grad_stream = read_like(of_stream, "the gradient of the stream", above.object());
    a.dx = dense_like(of_stream, tensors.write("dx", dx.ptr()));
    a.dbranch = write_like(of_stream, "dbranch", dbranch);
    set_statistics(a, statistics_in(statistics, statistics_of(a)));
    backward(a, threads);
}

// Would residual_forward take these? For callers who must not begin (draw a seed) and then be refused.
bool fits_residual(Object x, Object branch, Object weight, Object bias) {
    try {
        RowNorm a{};
        const Seen of_x = tensors.read("x", x.ptr());
        set_rows(a, of_x);
        dense_like(of_x, tensors.read("branch", branch.ptr()));
        set_parameters(a, weight, bias);
        return true;
    } catch (const Unfit&) {
        return false;
    }
}

}  // namespace

void bind_rows(nb::module_& m) {
    const auto one = nb::arg();
    const auto maybe = nb::arg().none();  // None is taken, too
    m.def("row_forward", &row_forward, one, maybe, maybe, maybe, maybe, one, one, one);
    m.def("row_backward", &row_backward, one, one, maybe, maybe, maybe, one, one, one);
    m.def("residual_forward", &residual_forward, one, one, maybe, maybe, maybe, one, one, one);
    m.def("residual_backward", &residual_backward, one, one, maybe, maybe, maybe, one, one, one);
    m.def("fits_residual", &fits_residual, one, one, maybe, maybe);
}

}  // namespace normlab
