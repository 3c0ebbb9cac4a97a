// Every kernel table this program can run: what the CPU has, and the emulated AVX512 one where it was built in.
#pragma once

#include <string>
#include <vector>

#include "cpu/dispatch.h"

namespace hasten {
#ifdef HASTEN_EMULATE_AVX512
extern const KernelTable kEmulatedAvx512Kernels;
#endif
}  // namespace hasten

namespace hasten::test {

struct NamedTable {
  std::string name;
  const KernelTable* table;
};

inline std::vector<NamedTable> all_tables() {
  std::vector<NamedTable> tables;
  for (const Isa isa : available_isas()) tables.push_back({isa_name(isa), &select_kernels(isa_name(isa))});
#ifdef HASTEN_EMULATE_AVX512
  tables.push_back({"emulated avx512", &kEmulatedAvx512Kernels});
#endif
  return tables;
}

}  // namespace hasten::test
