// Column norms: statistics over rows, per channel or group of channels: BatchNorm, InstanceNorm, GroupNorm, PowerNorm.
//
// All of them are four streaming passes over (segment, row, channel) with small float64 arrays in between:
//   moments   x        -> mean and squared deviation per (segment, channel), merged into sets
//   apply     x        -> y  = (x - mean) * a + b
//   sums      grad, x  -> sum(grad), sum(grad * xhat) per channel
//   gradient  grad, x  -> dx = direct * grad + along * xhat + offset
// The first two are in column_forward.cpp, the others in column_backward.cpp; this is what they share.
//
// Only real rows are gathered, in order, so adding padding changes no bit; the cut into tasks follows each segment's real
// rows alone.
//
// Segments without a common statistic are worked on in parts, a few segments through all passes at a time: what lies between
// the passes is then bounded, however many segments there are, and x is still in a cache when it is read again.
#pragma once
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

// ---- walks over the values ------------------------------------------------------------------------------------

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

// ---- statistics as coefficients -------------------------------------------------------------------------------

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
            for (int64_t g = a.groups - 1; g >= 0; --g)  // from the end: a group lies after the value it is filled with
                for (int64_t c = (g + 1) * width - 1; c >= g * width; --c) {
                    rstd[c] = rstd[g];
                    spread[c] = mean[g];
                }
            mean = spread;
        }
        f(set, mean, rstd);
    }
}

}  // namespace

}  // namespace NORMLAB_ISA
}  // namespace normlab
