// Column norms backward: the sums that cross rows, and dx from them, together or with an exchange between processes in the
// middle.
#include "columns.h"
#include "entries.h"

namespace normlab {
namespace NORMLAB_ISA {
namespace {

// xhat = (x - hi) * scale + rest for (set, channel), in arrays 0..2 of k: hi is the mean rounded, rest what that lost.
template <class T> void fill_normalizers(const ColumnNorm& a, const Coefficients<T>& k) {
    typedef typename Compute<T>::type C;
    each_set(a, [&](int64_t set, const double* mean, const double* rstd) {
        C *his = k.get(set, 0), *scales = k.get(set, 1), *rests = k.get(set, 2);
        for (int64_t c = 0; c < a.channels; ++c) {
            const int64_t l = slot<T>(c);
            const C hi = (C)mean[c];
            his[l] = hi;
            scales[l] = (C)rstd[c];
            rests[l] = (C)(-(mean[c] - (double)hi) * rstd[c]);
        }
    });
}

template <class T> void take_sums(const ColumnNorm& a, const Rows& rows) {
    typedef typename Compute<T>::type C;
    typedef Block<C> Bk;
    const Coefficients<T> k(a, 3);
    fill_normalizers<T>(a, k);
    const int64_t wide = k.wide, set_channels = sets(a) * a.channels;
    for (int64_t i = 0; i < set_channels; ++i) a.sum_grad[i] = a.sum_grad_xhat[i] = 0;  // null when there is no sample
    if (a.planes) {
        const int64_t planes = a.segments * a.channels, fit = round_bytes / (2 * (int64_t)sizeof(double));
        const int64_t together = planes < fit ? planes : fit;
        const Scratch room((size_t)together * 2 * sizeof(double));
        double* per_plane = room.as<double>();
        for (int64_t first = 0, count; first < planes; first += count) {
            count = planes - first < together ? planes - first : together;
            run_tasks(count, elements(a), threads(a), [&](int64_t i) {
                const int64_t s = (first + i) / a.channels, c = (first + i) % a.channels, l = slot<T>(c), set = set_of(a, s);
                const C hi = k.get(set, 0)[l], scale = k.get(set, 1)[l], rest = k.get(set, 2)[l];
                double total = 0, along = 0;
                plane_runs<T>(a, rows, s, c, [&](const T* x, const T* grad, int64_t n) {
                    Bk sum = Bk::all(0), product = Bk::all(0);
                    each_block<C>(n, [&](int64_t j, auto count) __attribute__((always_inline)) {
                        const Bk g = load(grad + j, count);
                        sum = sum + g;
                        product = product + g * ((load(x + j, count) - hi) * scale + rest);
                    });
                    total += (double)horizontal(sum);
                    along += (double)horizontal(product);
                });
                per_plane[2 * i] = total;
                per_plane[2 * i + 1] = along;
            });
            for (int64_t i = 0; i < count; ++i) {
                const int64_t at = set_of(a, (first + i) / a.channels) * a.channels + (first + i) % a.channels;
                a.sum_grad[at] += per_plane[2 * i];
                a.sum_grad_xhat[at] += per_plane[2 * i + 1];
            }
        }
        return;
    }
    const T* x = (const T*)a.x;
    const T* grad = (const T*)a.grad;
    const Scratch of_tasks((size_t)((rows.tasks + 1) * wide) * 2 * sizeof(double));
    double* partial = of_tasks.as<double>();
    run_tasks(rows.tasks, elements(a), threads(a), [&](int64_t t) {
        const Rows::Task task = rows.task[t];
        const int64_t set = set_of(a, task.segment);
        const C *hi = k.get(set, 0), *scale = k.get(set, 1), *rest = k.get(set, 2);
        double* total = partial + 2 * t * wide;
        double* along = total + wide;
        memset(total, 0, (size_t)wide * 2 * sizeof(double));
        for (int64_t i = task.begin; i < task.end; i += run_rows) {
            const int held = (int)(task.end - i < run_rows ? task.end - i : run_rows);
            int64_t at[run_rows];
            for (int r = 0; r < held; ++r) at[r] = rows.at(i + r) * a.channels;
            each_block<C>(a.channels, [&](int64_t j, auto count) __attribute__((always_inline)) {
                const Bk h = load_same(hi + j), f = load_same(scale + j), b = load_same(rest + j);
                Bk sum = Bk::all(0), product = Bk::all(0);
                for (int r = 0; r < held; ++r) {
                    const Bk g = load(grad + at[r] + j, count);
                    sum = sum + g;
                    product = product + g * ((load(x + at[r] + j, count) - h) * f + b);
                }
                C s[Bk::B], q[Bk::B];
                store(s, sum); store(q, product);
                for (int l = 0; l < Bk::B; ++l) {
                    total[j + l] += (double)s[l];
                    along[j + l] += (double)q[l];
                }
            });
        }
    });
    for (int64_t t = 0; t < rows.tasks; ++t) {
        const int64_t at = set_of(a, rows.task[t].segment) * a.channels;
        const double* total = partial + 2 * t * wide;
        for (int64_t c = 0; c < a.channels; ++c) {
            a.sum_grad[at + c] += total[slot<T>(c)];
            a.sum_grad_xhat[at + c] += total[wide + slot<T>(c)];
        }
    }
}

// Replace each value by the sum over its group.
inline void sum_groups(const ColumnNorm& a, double* values) {
    const int64_t width = a.channels / a.groups;
    if (width == 1) return;
    for (int64_t g = 0; g < a.groups; ++g) {
        const double total = lane_sum(g * width, (g + 1) * width, [&](int64_t c) { return values[c]; });
        for (int64_t c = g * width; c < (g + 1) * width; ++c) values[c] = total;
    }
}

template <class T> void gradient(const ColumnNorm& a, const Output& out) {
    typedef typename Compute<T>::type C;
    typedef Block<C> Bk;
    if (!a.dx) return;
    const Coefficients<T> k(a, 6);
    fill_normalizers<T>(a, k);
    const Scratch room((size_t)a.channels * 3 * sizeof(double));
    double* gain = room.as<double>();
    double *c1 = gain + a.channels, *c2 = c1 + a.channels;
    widen(gain, a.param_dtype, a.weight, a.channels, 1, a.offset_gain ? 1 : 0);
    each_set(a, [&](int64_t set, const double*, const double* rstd) {
        const double n = a.count[set], share = !a.given && n > 0 ? -1.0 / n : 0, share_1 = a.centered ? share : 0;
        C *direct = k.get(set, 3), *along = k.get(set, 4), *offset = k.get(set, 5);
        if (a.direct) {
            for (int64_t c = 0; c < a.channels; ++c) {
                const int64_t l = slot<T>(c), i = set * a.channels + c;
                direct[l] = (C)a.direct[i];
                along[l] = (C)a.along[i];
                offset[l] = (C)a.offset[i];
            }
            return;
        }
        const double *sum_grad = a.sum_grad + set * a.channels, *sum_grad_xhat = a.sum_grad_xhat + set * a.channels;
        for (int64_t c = 0; c < a.channels; ++c) {
            c1[c] = gain[c] * sum_grad[c];
            c2[c] = gain[c] * sum_grad_xhat[c];
        }
        sum_groups(a, c1);
        sum_groups(a, c2);
        for (int64_t c = 0; c < a.channels; ++c) {
            const int64_t l = slot<T>(c);
            direct[l] = (C)(gain[c] * rstd[c]);
            along[l] = (C)(share * rstd[c] * c2[c]);
            offset[l] = (C)(share_1 * rstd[c] * c1[c]);
        }
    });
    const T* x = (const T*)a.x;
    const T* grad = (const T*)a.grad;
    T* dx = (T*)a.dx;
    const bool straight = a.given && !a.direct;  // dx = direct * grad: x need not be read
    if (a.planes) {
        run_tasks(a.segments * a.channels, elements(a), threads(a), [&](int64_t plane) {
            const int64_t s = plane / a.channels, c = plane % a.channels, l = slot<T>(c), set = set_of(a, s);
            const C hi = k.get(set, 0)[l], scale = k.get(set, 1)[l], rest = k.get(set, 2)[l];
            const C direct = k.get(set, 3)[l], along = k.get(set, 4)[l], offset = k.get(set, 5)[l];
            const T *from = x + plane * a.rows, *up = grad + plane * a.rows;
            T* to = dx + plane * a.rows;
            // The branch stays outside of the blocks: inside, the compiler may take grad * direct, which both sides have, out of it, in
            // the last block and not in the others; it is then rounded by itself, and bits depend on where a value lies.
            if (straight)
                each_block<C>(a.rows, [&](int64_t j, auto count) __attribute__((always_inline)) {
                    out.write(to + j, load(up + j, count) * direct, count);
                });
            else
                each_block<C>(a.rows, [&](int64_t j, auto count) __attribute__((always_inline)) {
                    out.write(to + j, ((load(from + j, count) - hi) * scale + rest) * along +
                                      (load(up + j, count) * direct + offset), count);
                });
            out.finish();
            blank_plane(a, s, to);
        });
        return;
    }
    run_rows_of_segments(a, [&](int64_t s, int64_t begin, int64_t end) {
        const int64_t set = set_of(a, s);
        const C *hi = k.get(set, 0), *scale = k.get(set, 1), *rest = k.get(set, 2);
        const C *direct = k.get(set, 3), *along = k.get(set, 4), *offset = k.get(set, 5);
        row_batches(a, begin, end, [&](const int64_t* batch, int held) {
            if (straight) {
                each_block<C>(a.channels, [&](int64_t j, auto count) __attribute__((always_inline)) {
                    const Bk d = load_same(direct + j);
                    for (int i = 0; i < held; ++i) {
                        const int64_t at = batch[i] * a.channels + j;
                        out.write(dx + at, load(grad + at, count) * d, count);
                    }
                });
                return;
            }
            each_block<C>(a.channels, [&](int64_t j, auto count) __attribute__((always_inline)) {
                const Bk d = load_same(direct + j), h = load_same(hi + j), f = load_same(scale + j), b = load_same(rest + j);
                const Bk v = load_same(along + j), o = load_same(offset + j);
                for (int i = 0; i < held; ++i) {
                    const int64_t at = batch[i] * a.channels + j;
                    out.write(dx + at, ((load(x + at, count) - h) * f + b) * v + (load(grad + at, count) * d + o), count);
                }
            });
        }, [&](int64_t r) { memset(dx + r * a.channels, 0, (size_t)a.channels * sizeof(T)); });
        out.finish();
    });
}

// The gradients of gain and bias: the sums of all sets, added in their order.
struct ParameterSums {
    const bool wanted;
    const Scratch room;
    double *const dweight, *const dbias;

    explicit ParameterSums(const ColumnNorm& a)
        : wanted(a.dweight || a.dbias), room((size_t)a.channels * 2 * sizeof(double)), dweight(room.as<double>()),
          dbias(dweight + a.channels) {
        memset(dweight, 0, (size_t)a.channels * 2 * sizeof(double));
    }
    void add(const ColumnNorm& a) const {
        if (!wanted) return;
        constexpr int64_t strip = 128;
        run_tasks((a.channels + strip - 1) / strip, sets(a) * a.channels, threads(a), [&](int64_t job) {
            const int64_t begin = job * strip, end = begin + strip < a.channels ? begin + strip : a.channels;
            for (int64_t set = 0; set < sets(a); ++set)
                for (int64_t c = begin; c < end; ++c) {
                    dweight[c] += a.sum_grad_xhat[set * a.channels + c];
                    dbias[c] += a.sum_grad[set * a.channels + c];
                }
        });
    }
    void write(const ColumnNorm& a) const {
        if (a.dweight) narrow(a.param_dtype, a.dweight, dweight, a.channels);
        if (a.dbias) narrow(a.param_dtype, a.dbias, dbias, a.channels);
    }
};

template <class T> void sums_pass(const ColumnNorm& a) {
    in_parts<T>(a, [](const ColumnNorm& p) { take_sums<T>(p, Rows(p)); });
}
template <class T> void apply_pass(const ColumnNorm& a) {
    const Output out = output<T>(a, a.dx);
    const ParameterSums parameters(a);
    in_parts<T>(a, [&](const ColumnNorm& p) { gradient<T>(p, out); });
    parameters.add(a);
    parameters.write(a);
}
template <class T> void backward_pass(const ColumnNorm& a) {
    const Output out = output<T>(a, a.dx);
    const ParameterSums parameters(a);
    const auto both = [&](const ColumnNorm& p) {
        in_parts<T>(p, [&](const ColumnNorm& q) {
            take_sums<T>(q, Rows(q));
            gradient<T>(q, out);
        });
        parameters.add(p);
    };
    if (a.sum_grad || !sets(a)) {
        both(a);
    } else {  // in rounds of parts
        const Cut cut = cut_into_parts<T>(a);
        const int64_t each = a.channels * 2 * (int64_t)sizeof(double), fit = round_bytes / each;
        const int64_t busy = cut.segments * (cut.alone ? 2 * threads(a) : 1), round = fit > busy ? fit : busy;
        const int64_t together = a.pooled || round > a.segments ? a.segments : round;
        const int64_t columns = (a.pooled ? 1 : together) * a.channels;
        const Scratch room((size_t)columns * 2 * sizeof(double));
        for (int64_t first = 0; first == 0 || first < a.segments; first += together ? together : 1) {  // once for none
            ColumnNorm p = part<T>(a, first, a.segments - first < together ? a.segments - first : together);
            p.sum_grad = room.as<double>();
            p.sum_grad_xhat = p.sum_grad + columns;
            both(p);
        }
    }
    parameters.write(a);
}

}  // namespace

NORMLAB_BY_DTYPE(column_backward, ColumnNorm, backward_pass)
NORMLAB_BY_DTYPE(column_backward_sums, ColumnNorm, sums_pass)
NORMLAB_BY_DTYPE(column_backward_apply, ColumnNorm, apply_pass)

}  // namespace NORMLAB_ISA
}  // namespace normlab
