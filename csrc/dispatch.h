// Which instruction sets this build holds, which the machine has, and the table of the chosen one.
#pragma once
#include "kernels.h"

namespace normlab {

// Best first. `name` null ends the list.
struct Isa {
    const char* name;
    const Table* table;
    bool (*supported)();
};
extern const Isa isas[];

const Isa* best_isa();
const Isa* find_isa(const char* name);  // null when the build does not hold it

extern bool huge_pages;  // does expect_huge ask for them?

// Bytes of the stack a thread keeps for Scratch, and where memory comes from: the test program changes both.
extern size_t scratch_kept;
extern void* (*scratch_allocate)(size_t alignment, size_t bytes);

}  // namespace normlab
