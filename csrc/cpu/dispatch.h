// Which kernel table this process uses: the best the CPU has, or what HASTEN_ISA names.
#pragma once

#include <string>
#include <vector>

#include "kernels/kernel_table.h"

namespace hasten {

// Tables this CPU (and its operating system) can run, scalar first.
std::vector<Isa> available_isas();

const char* isa_name(Isa isa);  // "scalar", "avx2", "avx512"

// The table for `name` ("auto": HASTEN_ISA if set, else the best). Throws std::invalid_argument naming the available ones
// when the name is unknown or the CPU lacks it.
const KernelTable& select_kernels(const std::string& name);

}  // namespace hasten
