// The program of `make sanitize`: all tests of all kernels.
#include "testing.h"

using namespace normlab;

int main() {
    scratch_kept = 0;
    count_allocations();
    const int64_t widths[] = {1, 31, 32, 33, 67, 257}, heights[] = {0, 1, 3, 67};
    setvbuf(stdout, nullptr, _IOLBF, 0);  // what failed before a sanitizer stops the program must be seen
    Turn turn;
    for (const Isa* isa = isas; isa->name; ++isa) {
        if (!isa->supported()) {
            printf("%s: not on this machine\n", isa->name);
            continue;
        }
        for (DType t : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
            test_no_samples(*isa, t);           // first: no scratch memory exists yet
            test_rows(*isa, t, turn, 2, 8209);  // so wide that every instruction set sums in several runs
            for (int64_t width : widths)
                for (int64_t rows : heights) {
                    test_rows(*isa, t, turn, rows, width);
                    test_pointwise(*isa, t, turn, rows, width);
                    test_columns(*isa, t, turn, rows, width);
                }
            test_special_values(*isa, t);
            test_parts(*isa, t);
        }
        test_wide_sums(*isa);
        test_refused_memory(*isa);
    }
    long passed = 0, failed = 0;
    for (const Family& f : families) {
        printf("%-20s %7ld checks, the worst error used %.2f of its tolerance\n", f.name, f.passed + f.failed, f.worst);
        passed += f.passed;
        failed += f.failed;
    }
    printf("%ld passed, %ld failed\n", passed, failed);
    return failed || !passed;
}
