// Column norms, with the channels innermost and as planes.
#include <iterator>

#include "testing.h"

namespace normlab {
namespace {

enum Mask { no_mask, random_mask, harsh_mask };  // harsh: segment 0 has no real row, the last segment a single one
enum Groups { each_channel, some, whole };
struct ColumnCase {
    bool pooled;
    Groups groups;
    bool centered, given, weight, bias, offset, explicit_apply;
    Mask mask;
    double eps, center, scale;
};

bool keeps_running(const ColumnCase& c) { return c.pooled && c.groups == each_channel && c.centered && !c.given; }

struct ColumnOutputs {
    Buffer mean, var, count, y, sum_grad, sum_grad_xhat, dx, dweight, dbias, running_mean, running_var;
    ColumnOutputs(const ColumnCase& c, DType t, DType param, int64_t segments, int64_t rows, int64_t channels,
                  int64_t groups, int lead)
        : mean(DType::f64, (c.pooled ? 1 : segments) * groups), var(DType::f64, (c.pooled ? 1 : segments) * groups),
          count(DType::f64, c.pooled ? 1 : segments), y(t, segments * rows * channels, lead),
          sum_grad(DType::f64, (c.pooled ? 1 : segments) * channels),
          sum_grad_xhat(DType::f64, (c.pooled ? 1 : segments) * channels), dx(t, segments * rows * channels, lead),
          dweight(param, c.weight ? channels : 0, lead), dbias(param, c.bias ? channels : 0, lead),
          running_mean(param, keeps_running(c) ? channels : 0, lead),
          running_var(param, keeps_running(c) ? channels : 0, lead) {}
};

int64_t some_groups(int64_t channels) {
    for (int64_t g : {8, 3})
        if (channels % g == 0) return g;
    return 1;
}

void test_columns(const Isa& isa, const ColumnCase& c, bool planes, DType t, DType param, int64_t segments,
                  int64_t rows, int64_t channels, int lead) {
    const int64_t groups = c.groups == each_channel ? channels : c.groups == whole ? 1 : some_groups(channels);
    const int64_t width = channels / groups;
    char text[240];
    snprintf(text, sizeof text,
             "%s %s/%s %ldx%ldx%ld groups %ld pooled %d centered %d given %d weight %d bias %d offset %d explicit %d "
             "mask %d center %g scale %g",
             isa.name, format(t).name, format(param).name, (long)segments, (long)rows, (long)channels, (long)groups,
             c.pooled, c.centered, c.given, c.weight, c.bias, c.offset, c.explicit_apply, (int)c.mask, c.center,
             c.scale);
    context = text;
    family = families + (planes ? plane_family : column_family);
    const double scale = t == DType::f16 ? 1 : c.scale;
    const int64_t sets = c.pooled ? 1 : segments, size = segments * rows * channels;
    auto at = [&](int64_t s, int64_t r, int64_t ch) {
        return planes ? (s * channels + ch) * rows + r : (s * rows + r) * channels + ch;
    };

    std::vector<uint8_t> mask((size_t)(c.mask ? segments * rows : 0));
    for (int64_t i = 0; i < (int64_t)mask.size(); ++i) {
        const int64_t s = i / rows;
        const bool lone = c.mask == harsh_mask && s == segments - 1;
        mask[(size_t)i] = lone ? i % rows == rows / 2 : c.mask == harsh_mask && s == 0 ? 0 : randomness.chance(0.6);
    }
    auto is_real = [&](int64_t s, int64_t r) { return !c.mask || mask[(size_t)(s * rows + r)]; };
    Buffer x(t, size, lead), grad(t, size, lead);
    Buffer weight(param, c.weight ? channels : 0, lead), bias(param, c.bias ? channels : 0, lead);
    for (int64_t s = 0; s < segments; ++s)
        for (int64_t r = 0; r < rows; ++r)
            for (int64_t ch = 0; ch < channels; ++ch) {
                const double center = c.center + 0.2 * (double)(ch % 5);
                x.set(at(s, r, ch), is_real(s, r) ? scale * (center + randomness.uniform(-2, 2)) : NAN);
                grad.set(at(s, r, ch), is_real(s, r) ? randomness.uniform(-1, 1) : NAN);
            }
    weight.fill([&](int64_t) { return randomness.uniform(-1.5, 1.5); });
    bias.fill([&](int64_t) { return randomness.uniform(-1, 1); });
    std::vector<double> given_mean((size_t)(sets * groups)), given_var((size_t)(sets * groups)),
        coefficients((size_t)(3 * sets * channels));
    for (double& m : given_mean) m = c.centered ? scale * (c.center + randomness.uniform(-1, 1)) : 0;
    for (double& v : given_var) v = scale * scale * randomness.uniform(0.2, 3);
    for (double& k : coefficients) k = randomness.uniform(-1, 1);
    const double factor = 0.3;
    auto old_mean = [&](int64_t ch) { return scale * (0.25 + (double)(ch % 7)); };
    auto old_var = [&](int64_t ch) { return 1.5 + (double)(ch % 3); };

    auto describe = [&](ColumnOutputs& o, int threads) {
        ColumnNorm a{};
        a.segments = segments; a.rows = rows; a.channels = channels; a.groups = groups;
        a.planes = planes; a.pooled = c.pooled; a.centered = c.centered; a.given = c.given;
        a.dtype = t; a.param_dtype = param; a.eps = c.eps; a.offset_gain = c.offset; a.threads = threads;
        a.mask = c.mask ? mask.data() : nullptr;
        a.weight = weight.data; a.bias = bias.data; a.x = x.data;
        a.mean = o.mean.doubles(); a.var = o.var.doubles(); a.count = o.count.doubles(); a.y = o.y.data;
        if (c.given) {
            for (int64_t i = 0; i < o.mean.size; ++i) {
                o.mean.set(i, given_mean[(size_t)i]);
                o.var.set(i, given_var[(size_t)i]);
            }
            for (int64_t i = 0; i < sets; ++i) o.count.set(i, 0);
        }
        return a;
    };
    auto backward_fields = [&](ColumnNorm& a, ColumnOutputs& o) {
        a.y = nullptr; a.bias = nullptr;
        a.grad = grad.data; a.sum_grad = o.sum_grad.doubles(); a.sum_grad_xhat = o.sum_grad_xhat.doubles();
        if (c.explicit_apply) {
            a.direct = coefficients.data();
            a.along = a.direct + sets * channels;
            a.offset = a.along + sets * channels;
        }
        a.dx = o.dx.data; a.dweight = o.dweight.data; a.dbias = o.dbias.data;
    };
    ColumnOutputs o(c, t, param, segments, rows, channels, groups, lead);
    ColumnOutputs two(c, t, param, segments, rows, channels, groups, lead);
    for (ColumnOutputs* out : {&o, &two}) {  // in one go; `two` with two threads, keeping its sums to itself
        ColumnNorm a = describe(*out, out == &o ? 1 : 2);
        if (keeps_running(c)) {
            out->running_mean.fill(old_mean);
            out->running_var.fill(old_var);
            a.running_mean = out->running_mean.data; a.running_var = out->running_var.data;
            a.running_dtype = param; a.factor = factor;
        }
        isa.table->column_forward(a);
        backward_fields(a, *out);
        if (out == &two) a.sum_grad = a.sum_grad_xhat = nullptr;
        isa.table->column_backward(a);
    }
    ColumnOutputs split(c, t, param, segments, rows, channels, groups, lead);  // stage by stage
    {
        ColumnNorm a = describe(split, 2);
        if (!c.given) {
            a.y = nullptr;
            isa.table->column_moments(a);
            a.y = split.y.data;
            a.given = true;
        }
        isa.table->column_forward(a);
        a.given = c.given;
        backward_fields(a, split);
        const ColumnNorm apply = a;
        a.dx = a.dweight = a.dbias = nullptr;
        isa.table->column_backward_sums(a);
        isa.table->column_backward_apply(apply);
    }
    same_bits("running_mean", "with 2 threads", o.running_mean, two.running_mean);
    same_bits("running_var", "with 2 threads", o.running_var, two.running_var);
    same_bits("sum_grad", "stage by stage", o.sum_grad, split.sum_grad);
    same_bits("sum_grad_xhat", "stage by stage", o.sum_grad_xhat, split.sum_grad_xhat);
    for (ColumnOutputs* other : {&two, &split}) {
        const char* when = other == &two ? "with 2 threads" : "stage by stage";
        same_bits("mean", when, o.mean, other->mean);
        same_bits("var", when, o.var, other->var);
        same_bits("count", when, o.count, other->count);
        same_bits("y", when, o.y, other->y);
        same_bits("dx", when, o.dx, other->dx);
        same_bits("dweight", when, o.dweight, other->dweight);
        same_bits("dbias", when, o.dbias, other->dbias);
    }

    // A run of 16 rows is summed about one of its rows (or the mean of four), which adds the square of that distance to
    // every term: on this data at most twice the square about the mean. 18 roundings of 3 times the sum, halved by the
    // root, make 27. Planes are summed about their mean and stay below that.
    const std::vector<double> x_at = x.values(), grad_at = grad.values(), weight_at = weight.values(),
        bias_at = bias.values();
    const real u = unit_of(t), k = c.given ? 4 : 27, one = c.centered;
    const real adds = planes ? additions(t, rows) : 18;
    // Each merge of two means rounds in float64.
    const real merges = (real)(rows * segments / 16 + width * segments + 4);
    auto drift = [&](real center) { return merges * double_unit * fabsl(center); };
    Expected mean(o.mean.size), var(o.var.size), count(o.count.size), y(size), sum_grad(o.sum_grad.size),
        sum_grad_xhat(o.sum_grad.size);
    Expected dx(size), dweight(o.dweight.size), dbias(o.dbias.size), running_mean(o.running_mean.size),
        running_var(o.running_var.size);
    for (int64_t set = 0; set < sets; ++set)
        for (int64_t g = 0; g < groups; ++g) {
            auto each = [&](auto&& f) {
                for (int64_t s = c.pooled ? 0 : set; s < (c.pooled ? segments : set + 1); ++s)
                    for (int64_t r = 0; r < rows; ++r)
                        for (int64_t ch = g * width; is_real(s, r) && ch < (g + 1) * width; ++ch) f(at(s, r, ch), ch);
            };
            real n = 0, center = 0, square = 0;
            each([&](int64_t i, int64_t) { n += 1; center += x_at[(size_t)i]; });
            center = n > 0 && c.centered ? center / n : 0;
            each([&](int64_t i, int64_t) { square += (x_at[(size_t)i] - center) * (x_at[(size_t)i] - center); });
            if (n > 0) square /= n;
            const int64_t stat = set * groups + g;
            if (c.given) {
                n = 0; center = given_mean[(size_t)stat]; square = given_var[(size_t)stat];
            } else {
                const real spread = sqrtl(square);
                mean.set(stat, center, c.centered ? k * u * spread + drift(center) : 0);
                var.set(stat, square, 2 * k * u * square + 2 * spread * drift(center));
            }
            const real lost = c.given ? 0 : drift(center);
            if (keeps_running(c)) {  // one cell says nothing about a variance: nothing moves
                const real first = rounded(param, old_mean(g)), second = rounded(param, old_var(g)),
                    moved = n < 2 ? 0 : factor;
                const real unbiased = n < 2 ? 0 : square * n / (n - 1);
                running_mean.set(g, first + moved * (center - first),
                                 2 * u * (fabsl(first) + fabsl(center)) + moved * mean.slack[(size_t)stat]);
                running_var.set(g, second + moved * (unbiased - second),
                                2 * u * second + moved * ((2 * k + 3) * u * unbiased + 4 * sqrtl(square) * lost));
            }
            count.value[(size_t)set] = n;
            const real inverse = 1 / sqrtl(square + c.eps);
            real c1 = 0, c2 = 0, a1 = 0, a2 = 0;
            each([&](int64_t i, int64_t ch) {
                const real gain = (c.weight ? weight_at[(size_t)ch] : 1) + (c.weight && c.offset ? 1 : 0),
                    b = c.bias ? bias_at[(size_t)ch] : 0;
                const real xhat = (x_at[(size_t)i] - center) * inverse, d = grad_at[(size_t)i],
                    doubt = k * u * (fabsl(xhat) + one) + lost * inverse * (1 + fabsl(xhat));
                y.set(i, xhat * gain + b, (doubt + 3 * u * fabsl(xhat)) * fabsl(gain) + u * fabsl(b) + u * u);
                const size_t to = (size_t)(set * channels + ch);
                sum_grad.value[to] += d;
                sum_grad.slack[to] += adds * u * fabsl(d);
                sum_grad_xhat.value[to] += d * xhat;
                sum_grad_xhat.slack[to] += fabsl(d) * (adds * u * (fabsl(xhat) + one) + doubt);
                c1 += gain * d; a1 += fabsl(gain * d);
                c2 += gain * d * xhat; a2 += fabsl(gain * d) * (fabsl(xhat) + one);
            });
            each([&](int64_t i, int64_t ch) {
                const real gain = (c.weight ? weight_at[(size_t)ch] : 1) + (c.weight && c.offset ? 1 : 0);
                const real xhat = (x_at[(size_t)i] - center) * inverse, d = grad_at[(size_t)i];
                if (c.explicit_apply) {
                    const int64_t to = set * channels + ch;
                    const real p = coefficients[(size_t)to] * d, q = coefficients[(size_t)(sets * channels + to)],
                        z = coefficients[(size_t)(2 * sets * channels + to)];
                    const real doubt = (k + 3) * u * (fabsl(xhat) + one) + lost * inverse * (1 + fabsl(xhat));
                    dx.set(i, p + q * xhat + z, u * (4 * fabsl(p) + 2 * fabsl(z)) + fabsl(q) * doubt);
                    return;
                }
                const real m1 = n > 0 && c.centered ? c1 / n : 0, m2 = n > 0 ? c2 / n : 0;
                const real shared = n > 0 ? (one * a1 + (fabsl(xhat) + one) * a2) / n : 0;
                const real by_mean = n > 0 ? fabsl(gain * d) + (1 + fabsl(xhat)) * (a1 + a2) / n : 0;
                dx.set(i, inverse * (gain * d - m1 - xhat * m2),
                       u * inverse * ((k + 4) * fabsl(gain * d) + (k + adds + 4) * shared) +
                           lost * inverse * inverse * by_mean + u * u * inverse);
            });
        }
    for (int64_t ch = 0; ch < channels; ++ch)
        for (int64_t set = 0; set < sets; ++set) {
            const size_t from = (size_t)(set * channels + ch), to = (size_t)ch;
            if (c.weight) {
                dweight.value[to] += sum_grad_xhat.value[from];
                dweight.slack[to] += sum_grad_xhat.slack[from];
            }
            if (c.bias) { dbias.value[to] += sum_grad.value[from]; dbias.slack[to] += sum_grad.slack[from]; }
        }
    if (!c.given) {
        compare("mean", o.mean, mean);
        compare("var", o.var, var);
    }
    compare("count", o.count, count);
    if (scale < 1e9) {  // a variance of 1e60 fits no float32
        compare("running_mean", o.running_mean, running_mean);
        compare("running_var", o.running_var, running_var);
    }
    compare("y", o.y, y);
    compare("sum_grad", o.sum_grad, sum_grad);
    compare("sum_grad_xhat", o.sum_grad_xhat, sum_grad_xhat);
    compare("dx", o.dx, dx);
    compare("dweight", o.dweight, dweight);
    compare("dbias", o.dbias, dbias);
}

const ColumnCase column_cases[] = {
    // pooled groups     centered given weight bias  offset explicit mask     eps   center scale
    {true,  each_channel, true,  false, true,  true,  false, false, no_mask,     1e-5, 0.5,  1},  // batch
    {true,  each_channel, true,  false, true,  true,  true,  false, random_mask, 1e-2, -3,   1},
    {true,  each_channel, true,  false, true,  false, false, false, harsh_mask,  1e-5, 1e4,  1},
    {true,  each_channel, true,  false, false, true,  false, false, no_mask,     1e-5, 0.5,  1e30},
    {true,  each_channel, true,  true,  true,  true,  false, false, random_mask, 1e-5, 0.5,  1},  // batch, evaluation
    {true,  each_channel, true,  false, true,  true,  false, true,  random_mask, 1e-5, 0.5,  1},  // synced
    {true,  each_channel, false, false, true,  false, false, false, no_mask,     1e-5, 0.5,  1},  // power, per batch
    {true,  each_channel, false, true,  true,  true,  false, true,  harsh_mask,  1e-5, 0.5,  1},  // power, running
    {true,  some,         true,  false, true,  true,  false, false, harsh_mask,  1e-5, 0.5,  1},
    {false, each_channel, true,  false, true,  true,  false, false, no_mask,     1e-5, 0.5,  1},  // instance
    {false, each_channel, true,  false, true,  true,  true,  false, harsh_mask,  1e-2, 2,    1},
    {false, each_channel, false, false, false, false, false, false, random_mask, 1e-5, 0.5,  1},
    {false, some,         true,  false, true,  true,  false, false, no_mask,     1e-5, 0.5,  1},  // group
    {false, some,         true,  false, true,  true,  true,  false, harsh_mask,  1e-5, 0.5,  1},
    {false, whole,        true,  false, true,  false, false, false, random_mask, 1e-2, 10,   1},
    {false, whole,        true,  true,  false, true,  false, true,  random_mask, 1e-5, 0.5,  1},
};

}  // namespace

void test_columns(const Isa& isa, DType t, Turn& turn, int64_t rows, int64_t width) {
    for (const ColumnCase& c : column_cases) {
        const int off = turn.lead();
        if (rows * width > 10000 && turn.count % 3) continue;  // a third of the cases at the largest size
        for (bool planes : {false, true}) test_columns(isa, c, planes, t, turn.param(t), rows == 1 ? 1 : 3, rows, width, off);
    }
}

// Group norms before batch norms.
void test_no_samples(const Isa& isa, DType t) {
    for (auto c = std::rbegin(column_cases); c != std::rend(column_cases); ++c)
        for (bool planes : {false, true}) test_columns(isa, *c, planes, t, t, 0, 5, 7, 0);
}

}  // namespace normlab
