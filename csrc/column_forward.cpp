// Column norms forward: the moments of each set, running statistics that follow them, and y.
//
// Moments are taken over short runs of real rows, shifted by the mean of the run's first four. Members of the run cannot
// lie further from its mean than sqrt(run) deviations, so cancellation costs a bounded factor, 1.25 on ordinary data;
// runs are merged in float64 (Chan et al.).
#include "columns.h"
#include "entries.h"

namespace normlab {
namespace NORMLAB_ISA {
namespace {

inline void merge(double& n, double& mean, double& m2, double n_b, double mean_b, double m2_b) {
    if (n_b == 0) return;
    const double total = n + n_b, delta = mean_b - mean;
    if (n == 0) { n = n_b; mean = mean_b; m2 = m2_b; return; }
    mean += delta * (n_b / total);
    m2 += m2_b + delta * delta * (n * n_b / total);
    n = total;
}

// ---- moments --------------------------------------------------------------------------------------------------

// Moments of one task's rows for every channel, in block order.
template <class T> void column_run(const ColumnNorm& a, const Rows& rows, const Rows::Task& task, double* mean, double* m2) {
    typedef typename Compute<T>::type C;
    typedef Block<C> Bk;
    const T* x = (const T*)a.x;
    double n = 0;
    for (int64_t i = task.begin; i < task.end; i += run_rows) {
        const int held = (int)(task.end - i < run_rows ? task.end - i : run_rows);
        const T* p[run_rows];
        for (int k = 0; k < held; ++k) p[k] = x + rows.at(i + k) * a.channels;
        const double n_b = held, total = n + n_b, share = n_b / total, cross = n * n_b / total, inverse = 1.0 / n_b;
        each_block<C>(a.channels, [&](int64_t j, auto count) __attribute__((always_inline)) {
            Bk shift = load(p[0] + j, count);
            if (held >= 4)
                shift = ((shift + load(p[1] + j, count)) + (load(p[2] + j, count) + load(p[3] + j, count))) * (C)0.25;
            Bk sum = Bk::all(0), square = Bk::all(0);
            for (int k = 0; k < held; ++k) {
                const Bk d = load(p[k] + j, count) - shift;
                sum = sum + d;
                square = square + d * d;
            }
            C s[Bk::B], q[Bk::B], h[Bk::B];
            store(s, sum); store(q, square); store(h, shift);
            double* mean_j = mean + j;
            double* m2_j = m2 + j;
            if (n == 0) {
                for (int l = 0; l < Bk::B; ++l) {
                    const double rest = (double)s[l] * inverse;
                    mean_j[l] = (double)h[l] + rest;
                    m2_j[l] = (double)q[l] - rest * (double)s[l];
                }
            } else {
                for (int l = 0; l < Bk::B; ++l) {
                    const double rest = (double)s[l] * inverse;
                    const double delta = (double)h[l] + rest - mean_j[l];
                    mean_j[l] += delta * share;
                    m2_j[l] += (double)q[l] - rest * (double)s[l] + delta * delta * cross;
                }
            }
        });
        n = total;
    }
    // Columns whose squares left the range of the compute type are taken again in float64.
    const double least = a.eps <= 1e6 * Range<C>::small ? Range<C>::small * n : -INFINITY;  // tiny ones matter without eps
    bool fine = true;
    for (int64_t l = 0; l < a.channels / Bk::B * Bk::B; ++l) fine &= m2[l] < Range<C>::big && m2[l] >= least;
    for (int64_t c = fine ? a.channels / Bk::B * Bk::B : 0; c < a.channels; ++c) {
        const int64_t l = slot<T>(c);
        if (m2[l] < Range<C>::big && m2[l] >= least) continue;
        double mean_c = 0, m2_c = 0, n_c = 0;
        for (int64_t i = task.begin; i < task.end; ++i)
            merge(n_c, mean_c, m2_c, 1, get(x + rows.at(i) * a.channels, c), 0);
        mean[l] = mean_c;
        m2[l] = m2_c;
    }
    for (int64_t l = 0; l < padded<C>(a.channels); ++l) m2[l] = m2[l] < 0 ? 0 : m2[l];
}

template <class T> void take_moments(const ColumnNorm& a, const Rows& rows) {
    typedef typename Compute<T>::type C;
    const int64_t wide = padded<C>(a.channels);
    const Scratch of_segments((size_t)(a.segments * a.channels) * 2 * sizeof(double));
    double *seg_mean = of_segments.as<double>(), *seg_m2 = seg_mean + a.segments * a.channels;
    if (a.planes) {
        run_tasks(a.segments * a.channels, elements(a), threads(a), [&](int64_t plane) {
            double n = 0, mean = 0, m2 = 0;
            plane_runs<T>(a, rows, plane / a.channels, plane % a.channels, [&](const T* x, const T*, int64_t count) {
                const Moments m = moments(x, count, true, a.eps, first<T>(count % Block<C>::B));
                merge(n, mean, m2, (double)count, m.mean, m.square * (double)count);
            });
            seg_mean[plane] = mean;
            seg_m2[plane] = m2;
        });
    } else {
        const Scratch of_tasks((size_t)((rows.tasks + 1) * wide) * 2 * sizeof(double));
        const Scratch firsts((size_t)(a.segments + 1) * sizeof(int64_t));
        double* partial = of_tasks.as<double>();
        run_tasks(rows.tasks, elements(a), threads(a), [&](int64_t t) {
            column_run<T>(a, rows, rows.task[t], partial + 2 * t * wide, partial + (2 * t + 1) * wide);
        });
        constexpr int64_t columns = 128;
        const int64_t parts = (wide + columns - 1) / columns;
        // One job per segment and strip of columns: its tasks are merged in order.
        int64_t* first_task = firsts.as<int64_t>();
        int64_t t = 0;
        for (int64_t s = 0; s <= a.segments; ++s) {
            while (t < rows.tasks && rows.task[t].segment < s) ++t;
            first_task[s] = t;
        }
        run_tasks(a.segments * parts, rows.tasks * wide, threads(a), [&](int64_t job) {
            const int64_t s = job / parts, begin = job % parts * columns;
            const int64_t end = begin + columns < wide ? begin + columns : wide;
            const int64_t t0 = first_task[s], t1 = first_task[s + 1];
            if (t0 == t1) return;
            double* mean = partial + 2 * t0 * wide;
            double* m2 = mean + wide;
            double n = (double)(rows.task[t0].end - rows.task[t0].begin);
            for (int64_t u = t0 + 1; u < t1; ++u) {
                const double n_b = (double)(rows.task[u].end - rows.task[u].begin), total = n + n_b;
                const double share = n_b / total, cross = n * n_b / total;
                const double* mean_b = partial + 2 * u * wide;
                const double* m2_b = mean_b + wide;
                for (int64_t j = begin; j < end; ++j) {
                    const double delta = mean_b[j] - mean[j];
                    mean[j] += delta * share;
                    m2[j] += m2_b[j] + delta * delta * cross;
                }
                n = total;
            }
        });
        for (int64_t s = 0; s < a.segments; ++s) {
            const double* mean = partial + 2 * first_task[s] * wide;
            const bool empty = rows.count(s) == 0;
            for (int64_t c = 0; c < a.channels; ++c) {
                seg_mean[s * a.channels + c] = empty ? 0 : mean[slot<T>(c)];
                seg_m2[s * a.channels + c] = empty ? 0 : mean[wide + slot<T>(c)];
            }
        }
    }
    // Merge channels of a group, and segments when pooled, into sets.
    const int64_t width = a.channels / a.groups;
    for (int64_t set = 0; set < sets(a); ++set) {
        if (width == 1 && sets(a) == a.segments) {  // nothing to merge
            const double n = a.count[set] = (double)rows.count(set), some = n > 0 ? n : 1;
            const double *seg_mean_s = seg_mean + set * a.channels, *seg_m2_s = seg_m2 + set * a.channels;
            double *mean = a.mean + set * a.channels, *var = a.var + set * a.channels;
            for (int64_t c = 0; c < a.channels; ++c) {
                const double m = seg_mean_s[c], v = seg_m2_s[c] / some;
                mean[c] = a.centered ? m : 0;
                var[c] = a.centered ? v : v + m * m;
            }
            continue;
        }
        // All channels of a segment have its count, so a set's mean and deviations need no division per channel.
        const int64_t from = a.pooled ? 0 : set, to = a.pooled ? a.segments : set + 1;
        double cells = 0;
        for (int64_t s = from; s < to; ++s) cells += (double)(rows.count(s) * width);
        const double share = cells > 0 ? 1.0 / cells : 0;
        for (int64_t g = 0; g < a.groups; ++g) {
            const int64_t begin = g * width, end = begin + width;
            double mean = 0, m2 = 0;
            for (int64_t s = from; s < to; ++s) {
                const double* means = seg_mean + s * a.channels;
                mean += (double)rows.count(s) * lane_sum(begin, end, [&](int64_t c) { return means[c]; });
            }
            mean *= share;
            for (int64_t s = from; s < to; ++s) {
                const double *means = seg_mean + s * a.channels, *m2s = seg_m2 + s * a.channels, n = (double)rows.count(s);
                m2 += lane_sum(begin, end, [&](int64_t c) { return m2s[c] + n * (means[c] - mean) * (means[c] - mean); });
            }
            const double var = m2 * share;
            a.mean[set * a.groups + g] = a.centered ? mean : 0;
            a.var[set * a.groups + g] = a.centered ? var : var + mean * mean;
        }
        a.count[set] = cells;
    }
}

template <class P> void move_towards(const ColumnNorm& a, P* mean, P* var) {
    const double n = a.count[0], unbiased = n / (n - 1);
    for (int64_t c = 0; c < a.channels; ++c) {
        const double old_mean = get(mean, c), old_var = get(var, c);
        put(mean, c, old_mean + a.factor * (a.mean[c] - old_mean));
        put(var, c, old_var + a.factor * (a.var[c] * unbiased - old_var));
    }
}

void update_running(const ColumnNorm& a) {
    if (a.count[0] < 2) return;  // says nothing about a variance
    switch (a.running_dtype) {
        case DType::f32: return move_towards(a, (float*)a.running_mean, (float*)a.running_var);
        case DType::f64: return move_towards(a, (double*)a.running_mean, (double*)a.running_var);
        case DType::bf16: return move_towards(a, (bf16*)a.running_mean, (bf16*)a.running_var);
        case DType::f16: return move_towards(a, (f16*)a.running_mean, (f16*)a.running_var);
    }
}

// ---- apply ----------------------------------------------------------------------------------------------------

template <class T> void apply(const ColumnNorm& a, const Output& out) {
    typedef typename Compute<T>::type C;
    typedef Block<C> Bk;
    const Coefficients<T> k(a, 3);
    const Scratch room((size_t)a.channels * 2 * sizeof(double));
    double *gain = room.as<double>(), *bias = gain + a.channels;
    widen(gain, a.param_dtype, a.weight, a.channels, 1, a.offset_gain ? 1 : 0);
    widen(bias, a.param_dtype, a.bias, a.channels, 0, 0);
    each_set(a, [&](int64_t set, const double* mean, const double* rstd) {
        C *his = k.get(set, 0), *factors = k.get(set, 1), *constants = k.get(set, 2);
        for (int64_t c = 0; c < a.channels; ++c) {
            const int64_t l = slot<T>(c);
            const C hi = (C)mean[c];
            const double factor = rstd[c] * gain[c], constant = bias[c] - (mean[c] - (double)hi) * factor;
            his[l] = hi;
            factors[l] = factor == factor ? (C)factor : (C)NAN;
            constants[l] = constant == constant ? (C)constant : (C)NAN;
        }
    });
    const T* x = (const T*)a.x;
    T* y = (T*)a.y;
    if (a.planes) {
        run_tasks(a.segments * a.channels, elements(a), threads(a), [&](int64_t plane) {
            const int64_t s = plane / a.channels, c = plane % a.channels, l = slot<T>(c), set = set_of(a, s);
            const C hi = k.get(set, 0)[l], factor = k.get(set, 1)[l], constant = k.get(set, 2)[l];
            const T* from = x + plane * a.rows;
            T* to = y + plane * a.rows;
            each_block<C>(a.rows, [&](int64_t j, auto count) __attribute__((always_inline)) {
                out.write(to + j, (load(from + j, count) - hi) * factor + constant, count);
            });
            out.finish();
            blank_plane(a, s, to);
        });
        return;
    }
    run_rows_of_segments(a, [&](int64_t s, int64_t begin, int64_t end) {
        const int64_t set = set_of(a, s);
        const C *hi = k.get(set, 0), *factor = k.get(set, 1), *constant = k.get(set, 2);
        row_batches(a, begin, end, [&](const int64_t* batch, int held) {
            each_block<C>(a.channels, [&](int64_t j, auto count) __attribute__((always_inline)) {
                const Bk h = load_same(hi + j), f = load_same(factor + j), b = load_same(constant + j);
                for (int i = 0; i < held; ++i) {
                    const int64_t at = batch[i] * a.channels + j;
                    out.write(y + at, (load(x + at, count) - h) * f + b, count);
                }
            });
        }, [&](int64_t r) { memset(y + r * a.channels, 0, (size_t)a.channels * sizeof(T)); });
        out.finish();
    });
}

template <class T> void moments_pass(const ColumnNorm& a) {
    in_parts<T>(a, [](const ColumnNorm& p) { take_moments<T>(p, Rows(p)); });
}
template <class T> void forward_pass(const ColumnNorm& a) {
    const Output out = output<T>(a, a.y);
    in_parts<T>(a, [&](const ColumnNorm& p) {
        if (!p.given) take_moments<T>(p, Rows(p));
        if (p.running_mean) update_running(p);
        apply<T>(p, out);
    });
}

}  // namespace

NORMLAB_BY_DTYPE(column_moments, ColumnNorm, moments_pass)
NORMLAB_BY_DTYPE(column_forward, ColumnNorm, forward_pass)

}  // namespace NORMLAB_ISA
}  // namespace normlab
