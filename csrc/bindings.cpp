// The module. Only the bindings know Python (this file, bind_*.cpp, arguments.h, tensors.h): they check what a kernel will read
// and write, describe it in the kernel's struct, and release the GIL.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <utility>
#include <vector>

#include "arguments.h"

namespace normlab {

const Isa* chosen = nullptr;
Tensors tensors;

}  // namespace normlab

using namespace normlab;

NB_MODULE(_native, m) {
    chosen = best_isa();
    m.def("isas", [] {
        std::vector<std::pair<std::string, bool>> all;
        for (const Isa* isa = isas; isa->name; ++isa) all.emplace_back(isa->name, isa->supported());
        return all;
    }, "(name, does this machine have it) of every instruction set in this build, best first");
    m.def("isa", [] { return std::string(chosen->name); }, "the instruction set in use");
    m.def("use_isa", [](const std::string& name) {
        const Isa* isa = find_isa(name.c_str());
        if (!isa) throw std::invalid_argument("this build holds no instruction set named '" + name + "'");
        if (!isa->supported()) throw std::invalid_argument("this machine has no " + name);
        chosen = isa;
    });
    m.def("use_huge_pages", [](bool wanted) { huge_pages = wanted; }, "ask for huge pages under large outputs, or not");
    m.def("huge_pages", [] { return huge_pages; }, "are huge pages asked for?");
#ifdef _OPENMP
    m.attr("openmp") = true;
#else
    m.attr("openmp") = false;
#endif
    nb::exception<Unfit>(m, "Unfit", PyExc_RuntimeError);
    m.def("see_tensors", [](Object capsule, Object plain, Object questions) {
        return tensors.use(capsule.ptr(), plain.ptr(), questions.ptr());
    }, "torch's table for looking into tensors, the plain types, methods that tell the rest; False: descriptions must be sent");
    m.def("take_descriptions", [](Object type) { tensors.take_descriptions(type.ptr()); }, "the type of a description");
    bind_rows(m);
    bind_columns(m);
    bind_pointwise(m);
}
