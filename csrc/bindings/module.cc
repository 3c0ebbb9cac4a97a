// The extension module: one function per group of bindings, each in its own file.
#include <nanobind/nanobind.h>

namespace hasten {
void bind_kernels(nanobind::module_& m);  // bindings/kernels.cc: used by hasten.ops
void bind_model(nanobind::module_& m);    // bindings/model.cc: used by hasten.engine.native
}  // namespace hasten

NB_MODULE(_kernels, m) {
  m.doc() = "Native core of hasten; use hasten.ops and hasten.engine.native instead.";
  hasten::bind_kernels(m);
  hasten::bind_model(m);
}
