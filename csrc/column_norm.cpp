// Column norms: statistics over rows, per channel or group of channels: BatchNorm, InstanceNorm, GroupNorm, PowerNorm.
//
// All of them are four streaming passes over (segment, row, channel) with small float64 arrays in between:
//   moments   x        -> mean and squared deviation per (segment, channel), merged into sets
//   apply     x        -> y  = (x - mean) * a + b
//   sums      grad, x  -> sum(grad), sum(grad * xhat) per channel
//   gradient  grad, x  -> dx = direct * grad + along * xhat + offset
//
// Moments are taken over short runs of real rows, shifted by the mean of the run's first four. Members of the run cannot
// lie further from its mean than sqrt(run) deviations, so cancellation costs a bounded factor, 1.25 on ordinary data;
// runs are merged in float64 (Chan et al.). Only real rows are gathered, in order, so adding padding changes no bit.
// The cut into tasks follows each segment's real rows alone.
//
// Segments without a common statistic are worked on in parts, a few segments through all passes at a time: what lies between
// the passes is then bounded, however many segments there are, and x is still in a cache when it is read again.
#include "moments.h"
#include "tasks.h"

namespace normlab {
namespace NORMLAB_ISA {
namespace {

constexpr int run_rows = 16;        // rows summed in registers before a float64 merge
constexpr int apply_rows = 4;       // rows that share one load of the coefficients
constexpr int64_t chunk = 4096;     // planes: values per run

inline int64_t sets(const ColumnNorm& a) { return a.pooled ? 1 : a.segments; }
inline int64_t set_of(const ColumnNorm& a, int64_t segment) { return a.pooled ? 0 : segment; }
inline int64_t elements(const ColumnNorm& a) { return a.segments * a.rows * a.channels; }
// One thread where a second costs more than it brings: a forward or a backward here wakes it several times.
inline int threads(const ColumnNorm& a) { return elements(a) < 65536 ? 1 : a.threads; }

inline void merge(double& n, double& mean, double& m2, double n_b, double mean_b, double m2_b) {
    if (n_b == 0) return;
    const double total = n + n_b, delta = mean_b - mean;
    if (n == 0) { n = n_b; mean = mean_b; m2 = m2_b; return; }
    mean += delta * (n_b / total);
    m2 += m2_b + delta * delta * (n * n_b / total);
    n = total;
}

// Sum of f(i) over [begin, end) in eight lanes, so that it runs in vectors; the order is fixed.
template <class F> inline __attribute__((always_inline)) double lane_sum(int64_t begin, int64_t end, F&& f) {
    double lane[8] = {};
    int64_t i = begin;
    for (; i + 8 <= end; i += 8)
        for (int l = 0; l < 8; ++l) lane[l] += f(i + l);
    for (; i < end; ++i) lane[0] += f(i);
    return ((lane[0] + lane[4]) + (lane[1] + lane[5])) + ((lane[2] + lane[6]) + (lane[3] + lane[7]));
}

// The real rows of each segment, and the tasks they are cut into.
struct Rows {
    struct Task { int64_t segment, begin, end; };
    const Scratch places;
    int64_t* const start;   // [segments + 1] into index
    int64_t* const index;   // row numbers within the whole tensor; null = every row
    const int64_t tasks;
    const Scratch cut;
    Task* const task;
    inline int64_t at(int64_t i) const { return index ? index[i] : i; }
    inline int64_t count(int64_t segment) const { return start[segment + 1] - start[segment]; }

    explicit Rows(const ColumnNorm& a)
        : places((size_t)(a.segments + 1 + (a.mask ? a.segments * a.rows : 0)) * sizeof(int64_t)), start(places.as<int64_t>()),
          index(a.mask ? start + a.segments + 1 : nullptr), tasks(find(a)), cut((size_t)(tasks + 1) * sizeof(Task)),
          task(cut.as<Task>()) {
        int64_t t = 0;
        for (int64_t s = 0; s < a.segments; ++s) {
            const int64_t per_task = rows_per_task(count(s));
            for (int64_t r = start[s]; r < start[s + 1]; r += per_task)
                task[t++] = {s, r, r + per_task < start[s + 1] ? r + per_task : start[s + 1]};
        }
    }

private:
    int64_t find(const ColumnNorm& a) const;
};

// Fills start and index; returns the number of tasks.
int64_t Rows::find(const ColumnNorm& a) const {
    int64_t found = 0, number = 0;
    for (int64_t s = 0; s < a.segments; ++s) {
        start[s] = found;
        if (a.mask) {
            const uint8_t* mask = a.mask + s * a.rows;
            for (int64_t r = 0; r < a.rows; ++r) {
                index[found] = s * a.rows + r;
                found += mask[r] != 0;
            }
        } else {
            found += a.rows;
        }
        const int64_t n = found - start[s], per_task = rows_per_task(n);
        number += (n + per_task - 1) / per_task;
    }
    start[a.segments] = found;
    return number;
}

// ---- parts ----------------------------------------------------------------------------------------------------

constexpr int64_t tile_values = 16384, tile_bytes = 1 << 20;   // a part that one thread works on alone: values, working memory
constexpr int64_t team_values = 262144, team_bytes = 4 << 20;  // a part that all threads work on has at least one of these
constexpr int64_t round_bytes = 16 << 20;                       // sums that are kept until they are added up

// `count` segments of `a` from `first` on.
template <class T> ColumnNorm part(const ColumnNorm& a, int64_t first, int64_t count) {
    ColumnNorm p = a;
    const int64_t cells = first * a.rows * a.channels, stats = first * a.groups, columns = first * a.channels;
    const auto move = [](auto*& pointer, int64_t by) { if (pointer) pointer += by; };
    const auto move_cells = [&](auto*& pointer) { if (pointer) pointer = (T*)pointer + cells; };
    p.segments = count;
    move(p.mask, first * a.rows);
    move(p.mean, stats); move(p.var, stats); move(p.count, first);
    move(p.sum_grad, columns); move(p.sum_grad_xhat, columns);
    move(p.direct, columns); move(p.along, columns); move(p.offset, columns);
    move_cells(p.x); move_cells(p.y); move_cells(p.grad); move_cells(p.dx);
    return p;
}

struct Cut {
    int64_t segments;  // per part
    bool alone;        // one thread per part; else all threads on each
};

// Where parts begin and end moves no bit: a segment is computed from itself.
template <class T> Cut cut_into_parts(const ColumnNorm& a) {
    typedef typename Compute<T>::type C;
    if (a.pooled) return {a.segments, false};
    const int64_t values = a.rows * a.channels, tasks = a.planes ? 0 : a.rows / rows_per_task(a.rows) + 2;
    const int64_t bytes = padded<C>(a.channels) * (int64_t)(2 * sizeof(double) * (tasks + 1) + 6 * sizeof(C)) +
                          (int64_t)sizeof(int64_t) * (6 + (a.mask ? a.rows : 0));
    const auto fit = [](int64_t room, int64_t each) { return each > 0 && room > each ? room / each : 1; };
    if (values > tile_values) {
        const int64_t by_values = fit(team_values, values), by_bytes = fit(team_bytes, bytes);
        return {by_values > by_bytes ? by_values : by_bytes, false};
    }
    const int64_t by_bytes = fit(tile_bytes, bytes), by_values = threads(a) > 1 ? fit(tile_values, values) : by_bytes;
    return {by_values < by_bytes ? by_values : by_bytes, true};
}

// f(part) for all parts of `a`.
template <class T, class F> void in_parts(const ColumnNorm& a, F&& f) {
    const Cut cut = cut_into_parts<T>(a);
    if (cut.segments >= a.segments) return f(a);
    const auto one = [&](int64_t i, int team) {
        const int64_t first = i * cut.segments, left = a.segments - first;
        ColumnNorm p = part<T>(a, first, left < cut.segments ? left : cut.segments);
        p.threads = team;
        f(p);
    };
    const int64_t parts = (a.segments + cut.segments - 1) / cut.segments;
    if (cut.alone) return run_tasks(parts, elements(a), threads(a), [&](int64_t i) { one(i, 1); });
    for (int64_t i = 0; i < parts; ++i) one(i, a.threads);
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

// The real values of one plane as runs of neighbours: f(run of x, run of grad, length).
template <class T, class F> void plane_runs(const ColumnNorm& a, const Rows& rows, int64_t segment, int64_t channel, F&& f) {
    const int64_t offset = (segment * a.channels + channel) * a.rows;
    const T* x = (const T*)a.x + offset;
    const T* grad = a.grad ? (const T*)a.grad + offset : nullptr;
    if (!rows.index) {
        for (int64_t r = 0; r < a.rows; r += chunk) f(x + r, grad ? grad + r : nullptr, a.rows - r < chunk ? a.rows - r : chunk);
        return;
    }
    const Scratch room(2 * chunk * sizeof(T));
    T* gathered = room.as<T>();
    const int64_t first_row = segment * a.rows;
    for (int64_t i = rows.start[segment]; i < rows.start[segment + 1]; i += chunk) {
        const int64_t left = rows.start[segment + 1] - i, n = left < chunk ? left : chunk;
        for (int64_t k = 0; k < n; ++k) {
            gathered[k] = x[rows.index[i + k] - first_row];
            if (grad) gathered[chunk + k] = grad[rows.index[i + k] - first_row];
        }
        f(gathered, grad ? gathered + chunk : nullptr, n);
    }
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

// Per-(set, channel) coefficients in compute precision and block order, one array after the other.
template <class T> struct Coefficients {
    typedef typename Compute<T>::type C;
    const int64_t wide;
    const int arrays;
    const Scratch room;
    C* const base;
    Coefficients(const ColumnNorm& a, int arrays_)
        : wide(padded<C>(a.channels)), arrays(arrays_), room((size_t)(sets(a) * arrays * wide) * sizeof(C)), base(room.as<C>()) {
        memset(base, 0, (size_t)(sets(a) * arrays * wide) * sizeof(C));
    }
    inline C* get(int64_t set, int which) const { return base + (set * arrays + which) * wide; }
};

// f(set, mean, 1/deviation) for every set, the two as one value per channel: plain loops over channels follow, which the
// compiler turns into vectors (a root and a division for each channel in turn took a third of a small BatchNorm).
template <class F> inline void each_set(const ColumnNorm& a, F&& f) {
    const int64_t width = a.channels / a.groups;
    const Scratch room((size_t)a.channels * 2 * sizeof(double));
    double *rstd = room.as<double>(), *spread = rstd + a.channels;
    for (int64_t set = 0; set < sets(a); ++set) {
        const double *mean = a.mean + set * a.groups, *var = a.var + set * a.groups;
        for (int64_t g = 0; g < a.groups; ++g) rstd[g] = 1.0 / sqrt(var[g] + a.eps);
        if (width > 1) {
            for (int64_t g = a.groups - 1; g >= 0; --g)  // from the end: a group lies behind the value it is filled with
                for (int64_t c = (g + 1) * width - 1; c >= g * width; --c) {
                    rstd[c] = rstd[g];
                    spread[c] = mean[g];
                }
            mean = spread;
        }
        f(set, mean, rstd);
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

// f(rows of this batch, how many) over all rows of a segment: real rows in batches, rows of padding to `blank`.
template <class F, class Z> inline void row_batches(const ColumnNorm& a, int64_t begin, int64_t end, F&& f, Z&& blank) {
    int64_t batch[apply_rows];
    int held = 0;
    for (int64_t r = begin; r < end; ++r) {
        if (a.mask && !a.mask[r]) { blank(r); continue; }
        batch[held++] = r;
        if (held == apply_rows) { f(batch, held); held = 0; }
    }
    if (held) f(batch, held);
}

// Cut every segment into pieces of about 16k values for a pass without sums.
template <class F> void run_rows_of_segments(const ColumnNorm& a, F&& f) {
    const int64_t per_task = 16384 / a.channels > apply_rows ? 16384 / a.channels : apply_rows;
    const int64_t pieces = (a.rows + per_task - 1) / per_task;
    run_tasks(a.segments * pieces, elements(a), threads(a), [&](int64_t task) {
        const int64_t s = task / pieces, begin = task % pieces * per_task;
        const int64_t end = begin + per_task < a.rows ? begin + per_task : a.rows;
        f(s, s * a.rows + begin, s * a.rows + end);
    });
}

// Zero the padding of a plane that was computed whole.
template <class T> void blank_plane(const ColumnNorm& a, int64_t segment, T* plane) {
    if (!a.mask) return;
    T zero;
    put(&zero, 0, 0);
    for (int64_t r = 0; r < a.rows; ++r)
        if (!a.mask[segment * a.rows + r]) plane[r] = zero;
}

// How y or dx is written: decided for the whole tensor, of which a pass may see a part only.
template <class T> Output output(const ColumnNorm& a, void* to) {
    expect_huge(to, (size_t)elements(a) * sizeof(T));
    return Output((const T*)to, elements(a), a.planes ? a.rows : a.channels);
}

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

// ---- backward -------------------------------------------------------------------------------------------------

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
        const double *sum_grad = a.sum_grad + set * a.channels, *sum_grad_xhat = a.sum_grad_xhat + set * a.channels;
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
            each_block<C>(a.rows, [&](int64_t j, auto count) __attribute__((always_inline)) {
                if (straight) out.write(to + j, load(up + j, count) * direct, count);
                else
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
            each_block<C>(a.channels, [&](int64_t j, auto count) __attribute__((always_inline)) {
                const Bk d = load_same(direct + j);
                if (straight) {
                    for (int i = 0; i < held; ++i) {
                        const int64_t at = batch[i] * a.channels + j;
                        out.write(dx + at, load(grad + at, count) * d, count);
                    }
                    return;
                }
                const Bk h = load_same(hi + j), f = load_same(scale + j), b = load_same(rest + j);
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

#define NORMLAB_BY_DTYPE(name, pass)                        \
    void name(const ColumnNorm& a) {                        \
        switch (a.dtype) {                                  \
            case DType::f32: return pass<float>(a);         \
            case DType::f64: return pass<double>(a);        \
            case DType::bf16: return pass<bf16>(a);         \
            case DType::f16: return pass<f16>(a);           \
        }                                                   \
    }
NORMLAB_BY_DTYPE(column_moments, moments_pass)
NORMLAB_BY_DTYPE(column_forward, forward_pass)
NORMLAB_BY_DTYPE(column_backward, backward_pass)
NORMLAB_BY_DTYPE(column_backward_sums, sums_pass)
NORMLAB_BY_DTYPE(column_backward_apply, apply_pass)

}  // namespace NORMLAB_ISA
}  // namespace normlab
