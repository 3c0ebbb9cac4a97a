#include "cpu/dispatch.h"

#include <cstdlib>
#include <stdexcept>

#include "cpu/features.h"

namespace hasten {
namespace {

struct Entry {
  Isa isa;
  const char* name;
  const KernelTable* table;  // null: not built for this architecture
};

#if defined(__x86_64__)
constexpr const KernelTable *kAvx2 = &kAvx2Kernels, *kAvx512 = &kAvx512Kernels;
#else
constexpr const KernelTable *kAvx2 = nullptr, *kAvx512 = nullptr;
#endif

constexpr Entry kEntries[] = {
    {Isa::kScalar, "scalar", &kScalarKernels}, {Isa::kAvx2, "avx2", kAvx2}, {Isa::kAvx512, "avx512", kAvx512}};

const Entry& entry_of(Isa isa) { return kEntries[static_cast<int>(isa)]; }

const KernelTable& named_table(const std::string& name, const std::string& asked_by) {
  const auto add = [](std::string& names, Isa isa) { names += (names.empty() ? "" : ", ") + std::string(isa_name(isa)); };
  std::string available, known;
  for (const Isa isa : available_isas()) {
    if (name == isa_name(isa)) return *entry_of(isa).table;
    add(available, isa);
  }
  std::string problem;
  for (const Entry& entry : kEntries) {
    if (name == entry.name) problem = "which this CPU or its operating system lacks";
    add(known, entry.isa);
  }
  if (problem.empty()) problem = "which is unknown (known: " + known + ")";
  throw std::invalid_argument(asked_by + " asks for the instruction set '" + name + "', " + problem +
                              "; available here: " + available + ", or auto");
}

}  // namespace

std::vector<Isa> available_isas() {
  const CpuFeatures cpu = detect_cpu_features();
  std::vector<Isa> isas{Isa::kScalar};
  if (cpu.avx2) isas.push_back(Isa::kAvx2);
  if (cpu.avx512) isas.push_back(Isa::kAvx512);
  return isas;
}

const char* isa_name(Isa isa) { return entry_of(isa).name; }

const KernelTable& select_kernels(const std::string& name) {
  if (name != "auto") return named_table(name, "the caller");
  const char* wish = std::getenv("HASTEN_ISA");
  if (wish != nullptr && *wish != '\0' && std::string(wish) != "auto") return named_table(wish, "HASTEN_ISA");
  return *entry_of(available_isas().back()).table;
}

}  // namespace hasten
