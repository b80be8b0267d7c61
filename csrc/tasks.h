// Threading: a fixed list of tasks, run by however many threads there are.
//
// The cut depends on the amount of work only, never on the number of threads, so partial sums come out the same.
// Built without OpenMP it runs on one thread.
#pragma once
#include <cstdint>

namespace {

// Rows per task when partial sums must be merged: few enough tasks that the partial sums are small beside the data.
inline int64_t rows_per_task(int64_t rows) {
    const int64_t by_count = (rows + 63) / 64;
    return by_count > 64 ? by_count : 64;
}

template <class F> inline void run_tasks(int64_t tasks, int64_t elements, int threads, F&& f) {
    // Below this a second thread costs as much as it brings (2 to 3 us to wake it and to wait for it).
    if (elements < 32768) threads = 1;
    if (threads > tasks) threads = (int)tasks;
    if (threads <= 1) {
        for (int64_t t = 0; t < tasks; ++t) f(t);
        return;
    }
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t t = 0; t < tasks; ++t) f(t);
}

}  // namespace
