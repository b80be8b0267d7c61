// Sums over rows for each column: the gradients of gain and bias.
//
// A task adds its rows in the compute type, about `flush_rows` at a time, then in float64; tasks are merged in order.
// The cut into tasks depends on the shape alone, so the bits do not depend on the number of threads. Very wide rows are
// summed in several rounds of tasks, so that no more totals exist at a time than `most_totals` bytes hold.
#pragma once
#include "pack.h"
#include "tasks.h"

namespace {

constexpr int64_t flush_rows = 64;
constexpr int64_t most_totals = 16 << 20;

template <class T> struct ColumnSums {
    typedef typename Compute<T>::type C;
    const bool wanted;  // false: tasks may be smaller, nothing is kept
    const int threads;
    const int64_t rows, width, wide, per_task, tasks, together;  // together: tasks whose totals exist at a time
    normlab::Scratch room;
    double* const totals;  // [together][2][wide]: sum(grad * value), sum(grad); after run() the first are those of all rows

    ColumnSums(int64_t rows_, int64_t width_, bool wanted_, int threads_)
        : wanted(wanted_), threads(threads_), rows(rows_), width(width_), wide(padded<C>(width)), per_task(cut(rows, width, wanted)),
          tasks(rows ? (rows + per_task - 1) / per_task : 1),  // no rows still have a (zero) sum
          together(wanted ? at_a_time() : tasks), room(wanted ? (size_t)(together * wide) * 2 * sizeof(double) : 0),
          totals(wanted ? room.as<double>() : nullptr) {}
    static int64_t cut(int64_t rows, int64_t width, bool wanted) {
        int64_t per_task = 32768 / width;
        per_task = per_task < 4 ? 4 : per_task > flush_rows ? flush_rows : per_task;
        return wanted && (rows + 63) / 64 > per_task ? (rows + 63) / 64 : per_task;
    }
    int64_t at_a_time() const {
        const int64_t fit = most_totals / (wide * 2 * (int64_t)sizeof(double)), busy = 2 * (threads > 1 ? threads : 1);
        const int64_t most = fit > busy ? fit : busy;
        return tasks < most ? tasks : most;
    }
    int64_t begin(int64_t task) const { return task * per_task; }
    int64_t end(int64_t task) const { return (task + 1) * per_task < rows ? (task + 1) * per_task : rows; }

    // The running sums of one task: current = [2][wide], the rows since the last flush.
    struct Task {
        const int64_t wide;
        const normlab::Scratch room;
        C* const current;
        double* const total;
        int64_t held = 0;
        // `total_` null: no sums are wanted.
        Task(int64_t wide_, double* total_)
            : wide(wide_), room(total_ ? (size_t)wide * 2 * sizeof(C) : 0), current(room.as<C>()), total(total_) {
            if (!total) return;
            memset(current, 0, (size_t)wide * 2 * sizeof(C));
            memset(total, 0, (size_t)wide * 2 * sizeof(double));
        }
        // The sums of one block of columns, held in registers while rows are added; `wanted` false: nothing happens.
        template <bool wanted> struct Columns {
            C *products, *grads;
            Block<C> product, total;
            inline __attribute__((always_inline)) void add(const Block<C>& grad, const Block<C>& value) {
                if (!wanted) return;
                product = product + grad * value;
                total = total + grad;
            }
            inline __attribute__((always_inline)) void keep() const {
                if (!wanted) return;
                store(products, product);
                store(grads, total);
            }
        };
        template <bool wanted> inline __attribute__((always_inline)) Columns<wanted> at(int64_t j) const {
            if constexpr (wanted) {
                C *products = current + j, *grads = products + wide;
                return {products, grads, load_same(products), load_same(grads)};
            } else {
                return {};
            }
        }
        template <bool wanted = true>
        inline __attribute__((always_inline)) void add_row(int64_t j, const Block<C>& grad, const Block<C>& value) const {
            auto sum = at<wanted>(j);
            sum.add(grad, value);
            sum.keep();
        }
        void add(int64_t at, double grad, double value) const {
            current[at] += (C)(grad * value);
            current[wide + at] += (C)grad;
        }
        void next_rows(int64_t count) {
            held += count;
            if (held >= flush_rows) flush();
        }
        void flush() {
            for (int64_t j = 0; j < 2 * wide; ++j) total[j] += (double)current[j];
            memset(current, 0, (size_t)wide * 2 * sizeof(C));
            held = 0;
        }
    };
    // f(number, Task) for every task, and the sums of all of them.
    template <class F> void run(F&& f) {
        for (int64_t first = 0, count; first < tasks; first += count) {
            const int64_t kept = first ? 1 : 0;  // the sums so far
            count = tasks - first < together - kept ? tasks - first : together - kept;
            run_tasks(count, rows * width, threads, [&](int64_t i) {
                Task task(wide, wanted ? totals + (kept + i) * wide * 2 : nullptr);
                f(first + i, task);
                if (wanted) task.flush();
            });
            if (wanted) merge(kept + count);
        }
    }
    void merge(int64_t count) {
        constexpr int64_t strip = 256;
        run_tasks((wide + strip - 1) / strip, count * wide, threads, [&](int64_t part) {
            const int64_t from = part * strip, to = from + strip < wide ? from + strip : wide;
            for (int64_t t = 1; t < count; ++t)
                for (int half = 0; half < 2; ++half)
                    for (int64_t j = from; j < to; ++j) totals[half * wide + j] += totals[(2 * t + half) * wide + j];
        });
    }
    double product(int64_t column) const { return totals[slot<T>(column)]; }

    // sum(grad * value) into dweight and sum(grad) into dbias; either may be null.
    void write(normlab::DType type, void* dweight, void* dbias) const {
        switch (type) {
            case normlab::DType::f32: return write_as((float*)dweight, (float*)dbias);
            case normlab::DType::f64: return write_as((double*)dweight, (double*)dbias);
            case normlab::DType::bf16: return write_as((bf16*)dweight, (bf16*)dbias);
            case normlab::DType::f16: return write_as((f16*)dweight, (f16*)dbias);
        }
    }
    template <class P> void write_as(P* dweight, P* dbias) const {
        if (dweight)
            for (int64_t j = 0; j < width; ++j) put(dweight, j, totals[slot<T>(j)]);
        if (dbias)
            for (int64_t j = 0; j < width; ++j) put(dbias, j, totals[wide + slot<T>(j)]);
    }
};

}  // namespace
