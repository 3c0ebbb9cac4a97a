#include "cpu/dispatch.h"

#include <cstdlib>
#include <stdexcept>

#include "cpu/features.h"

namespace hasten {
namespace {

const KernelTable& table_of(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx2) return kAvx2Kernels;
  if (isa == Isa::kAvx512) return kAvx512Kernels;
#endif
  (void)isa;
  return kScalarKernels;
}

std::string available_names() {
  std::string names;
  for (const Isa isa : available_isas()) names += (names.empty() ? "" : ", ") + std::string(isa_name(isa));
  return names;
}

const KernelTable& named_table(const std::string& name, const std::string& asked_by) {
  for (const Isa isa : available_isas()) {
    if (name == isa_name(isa)) return table_of(isa);
  }
  bool known = false;
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) known = known || name == isa_name(isa);
  const std::string asked = asked_by + " asks for the instruction set '" + name + "', ";
  const std::string problem =
      known ? "which this CPU or its operating system lacks" : "which is unknown (known: scalar, avx2, avx512)";
  throw std::invalid_argument(asked + problem + "; available here: " + available_names() + ", or auto");
}

}  // namespace

std::vector<Isa> available_isas() {
  const CpuFeatures cpu = detect_cpu_features();
  std::vector<Isa> isas{Isa::kScalar};
  if (cpu.avx2) isas.push_back(Isa::kAvx2);
  if (cpu.avx512) isas.push_back(Isa::kAvx512);
  return isas;
}

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    default:
      return "scalar";
  }
}

const KernelTable& select_kernels(const std::string& name) {
  if (name != "auto") return named_table(name, "the caller");
  const char* wish = std::getenv("HASTEN_ISA");
  if (wish != nullptr && *wish != '\0' && std::string(wish) != "auto") return named_table(wish, "HASTEN_ISA");
  return table_of(available_isas().back());
}

}  // namespace hasten
