// Threading: a fixed list of tasks, run by however many threads there are.
//
// The cut depends on the amount of work only, never on the number of threads, so partial sums come out the same.
// Built without OpenMP it runs on one thread.
#pragma once
#include <cstdint>

#include "kernels.h"

namespace {

// Rows per task when partial sums must be merged: few enough tasks that the partial sums are small beside the data.
inline int64_t rows_per_task(int64_t rows) {
    const int64_t by_count = (rows + 63) / 64;
    return by_count > 64 ? by_count : 64;
}

// One thread or all of them, never some: libgomp ends the threads that a smaller team leaves over, and the next region
// of torch's starts them again (50 us each). A thread without a task waits at the end.
template <class F> inline void run_tasks(int64_t tasks, int64_t elements, int threads, F&& f) {
    // Below this a second thread costs as much as it brings (2 to 3 us to wake it and to wait for it).
    if (elements < 32768 || tasks <= 1 || threads <= 1) {
        for (int64_t t = 0; t < tasks; ++t) f(t);
        return;
    }
    size_t missing = 0;  // an exception must not leave a parallel region: its caller throws it again
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t t = 0; t < tasks; ++t) {
        try {
            f(t);
        } catch (const normlab::OutOfMemory& e) {
#pragma omp atomic write
            missing = e.bytes;
        }
    }
    if (missing) normlab::out_of_memory(missing);
}

}  // namespace
