// DyT and Derf: tensors are checked and described in the kernel's struct. No arithmetic.
#include "arguments.h"

namespace normlab {
namespace {

constexpr const char* forms[] = {"tanh", "erf"};

void set_input(Pointwise& a, const Seen& x, Object form, int threads) {
    if (!x.axes || x.last < 1) x.refuse("has no features");
    if (!x.dense()) x.refuse("is not dense");
    a.x = x.data;
    a.dtype = x.dtype;
    a.width = x.last;
    a.rows = x.size / x.last;
    a.erf = Items::word_of(form, forms) == 1;
    a.threads = threads;
}

// What forward and backward read: alpha, shift and weight, in this order.
void set_curve(Pointwise& a, Parameters& p, Items& parameters) {
    a.alpha = p.read_scalar("alpha", parameters.object());
    if (!a.alpha) throw Unfit("alpha is missing");
    a.shift = p.read_scalar("shift", parameters.object());
    a.weight = p.read("weight", parameters.object(), a.width);
}

void set_mask(Pointwise& a, const Seen& x, Object mask) { a.mask = (const uint8_t*)tensors.mask(mask.ptr(), x, x.axes - 1).data; }

// parameters: (alpha, shift, weight, bias)
void pointwise_forward(Object x, Object parameters, Object mask, Object y, Object form, int threads) {
    Pointwise a{};
    const Seen of_x = tensors.read("x", x.ptr());
    set_input(a, of_x, form, threads);
    Parameters p;
    Items read("parameters", parameters, 4);
    set_curve(a, p, read);
    a.bias = p.read("bias", read.object(), a.width);
    a.param_dtype = p.dtype;
    set_mask(a, of_x, mask);
    a.y = dense_like(of_x, tensors.write("y", y.ptr()));
    nb::gil_scoped_release released;
    chosen->table->pointwise_forward(a);
}

// parameters: (alpha, shift, weight); gradients: (dx, dalpha, dshift, dweight, dbias), to be written; None where a parameter's
// is not wanted.
void pointwise_backward(Object grad, Object x, Object parameters, Object mask, Object gradients, Object form, int threads) {
    Pointwise a{};
    const Seen of_x = tensors.read("x", x.ptr());
    set_input(a, of_x, form, threads);
    Parameters p;
    Items read("parameters", parameters, 3);
    set_curve(a, p, read);
    set_mask(a, of_x, mask);
    Items written("gradients", gradients, 5);
    const Object dx = written.object();
    a.dalpha = p.write_scalar("dalpha", written.object());
    a.dshift = p.write_scalar("dshift", written.object());
    a.dweight = p.write("dweight", written.object(), a.width);
    a.dbias = p.write("dbias", written.object(), a.width);
    a.param_dtype = p.dtype;
    a.grad = dense_like(of_x, tensors.read("the gradient", grad.ptr()));
    a.dx = dense_like(of_x, tensors.write("dx", dx.ptr()));
    nb::gil_scoped_release released;
    chosen->table->pointwise_backward(a);
}

}  // namespace

void bind_pointwise(nb::module_& m) {
    const auto one = nb::arg();
    const auto maybe = nb::arg().none();  // None is taken, too
    m.def("pointwise_forward", &pointwise_forward, one, one, maybe, one, one, one);
    m.def("pointwise_backward", &pointwise_backward, one, one, one, maybe, one, one, one);
}

}  // namespace normlab
