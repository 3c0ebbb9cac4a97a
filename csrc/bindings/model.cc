// Bindings of csrc/model, used by hasten.engine.native alone: plain structs in, plain values out.
#include "model/model.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <tuple>

#include "bindings/names.h"
#include "cpu/dispatch.h"
#include "kernels/pack.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace hasten {
namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<2>, nb::device::cpu>;
using Ids = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using TokenLogprobTuple = std::tuple<int32_t, float, std::vector<std::pair<int32_t, float>>>;

// (name, format, n, k, bytes): rows of the file, each contiguous.
using TensorTuple = std::tuple<std::string, std::string, int, int, Bytes>;

TensorSource source_of(const TensorTuple& tensor) {
  const auto& [name, format, n, k, bytes] = tensor;
  if (bytes.stride(1) != 1) throw nb::value_error(("the rows of tensor " + name + " are not contiguous").c_str());
  const bool is_norm = name.ends_with("norm");
  const WeightFormat weight_format = value_of(("format of tensor " + name).c_str(), kWeightFormats, format);
  if (!is_norm) check_packable(weight_format, n, k, source_row_bytes(weight_format, k));
  const size_t row_bytes = is_norm ? static_cast<size_t>(k) * sizeof(float) : source_row_bytes(weight_format, k);
  if (bytes.shape(0) != static_cast<size_t>(n) || bytes.shape(1) != row_bytes) {
    throw nb::value_error(("tensor " + name + " has " + std::to_string(bytes.shape(0)) + " rows of " +
                           std::to_string(bytes.shape(1)) + " bytes, its shape needs " + std::to_string(n) + " of " +
                           std::to_string(row_bytes))
                              .c_str());
  }
  return {name, weight_format, n, k, bytes.data(), static_cast<size_t>(bytes.stride(0))};
}

std::vector<TensorSource> sources_of(const std::vector<TensorTuple>& tensors) {
  std::vector<TensorSource> sources;
  for (const TensorTuple& tensor : tensors) sources.push_back(source_of(tensor));
  return sources;
}

std::vector<TokenLogprobTuple> tuples_of(std::vector<TokenLogprob>& logprobs) {
  std::vector<TokenLogprobTuple> out;
  for (TokenLogprob& entry : logprobs) out.emplace_back(entry.token, entry.logprob, std::move(entry.top));
  return out;
}

void bind_config(nb::module_& m) {
  nb::class_<RopeConfig>(m, "RopeConfig")
      .def(nb::init<>())
      .def_rw("dim", &RopeConfig::dim)
      .def_rw("base", &RopeConfig::base)
      .def_rw("interleaved", &RopeConfig::interleaved)
      .def_prop_rw(
          "scaling", [](const RopeConfig& c) { return word_of(kRopeScalings, c.scaling); },
          [](RopeConfig& c, const std::string& word) { c.scaling = value_of("RoPE scaling", kRopeScalings, word); })
      .def_rw("factor", &RopeConfig::factor)
      .def_rw("low_freq_factor", &RopeConfig::low_freq_factor)
      .def_rw("high_freq_factor", &RopeConfig::high_freq_factor)
      .def_rw("original_max_position", &RopeConfig::original_max_position)
      .def_rw("freq_factors", &RopeConfig::freq_factors);
  nb::class_<ModelConfig>(m, "ModelConfig")
      .def(nb::init<>())
      .def_rw("num_layers", &ModelConfig::num_layers)
      .def_rw("hidden_size", &ModelConfig::hidden_size)
      .def_rw("intermediate_size", &ModelConfig::intermediate_size)
      .def_rw("num_q_heads", &ModelConfig::num_q_heads)
      .def_rw("num_kv_heads", &ModelConfig::num_kv_heads)
      .def_rw("head_dim", &ModelConfig::head_dim)
      .def_rw("vocab_size", &ModelConfig::vocab_size)
      .def_rw("norm_eps", &ModelConfig::norm_eps)
      .def_rw("tied_head", &ModelConfig::tied_head)
      .def_rw("rope", &ModelConfig::rope);
  nb::class_<Limits>(m, "ModelLimits")
      .def(nb::init<>())
      .def_rw("num_blocks", &Limits::num_blocks)
      .def_rw("max_model_len", &Limits::max_model_len)
      .def_rw("max_num_batched_tokens", &Limits::max_num_batched_tokens)
      .def_rw("max_num_seqs", &Limits::max_num_seqs)
      .def_prop_rw(
          "kv_format", [](const Limits& l) { return word_of(kKvFormats, l.kv_format); },
          [](Limits& l, const std::string& word) { l.kv_format = value_of("KV format", kKvFormats, word); });
  m.def("check_model_config", &check_config, "config"_a, "limits"_a);
}

void bind_plan(nb::module_& m) {
  nb::class_<SamplingConfig>(m, "SamplingConfig")
      .def(nb::init<>())
      .def_rw("temperature", &SamplingConfig::temperature)
      .def_rw("top_k", &SamplingConfig::top_k)
      .def_rw("top_p", &SamplingConfig::top_p)
      .def_rw("min_p", &SamplingConfig::min_p)
      .def_rw("seed", &SamplingConfig::seed)
      .def_rw("max_tokens", &SamplingConfig::max_tokens)
      .def_rw("logprobs", &SamplingConfig::logprobs)
      .def_rw("prompt_logprobs", &SamplingConfig::prompt_logprobs)
      .def_rw("repetition_penalty", &SamplingConfig::repetition_penalty)
      .def_rw("presence_penalty", &SamplingConfig::presence_penalty)
      .def_rw("frequency_penalty", &SamplingConfig::frequency_penalty)
      .def_rw("logit_bias", &SamplingConfig::logit_bias);
  nb::class_<Plan>(m, "Plan")
      .def(nb::init<>())
      .def_rw("finished", &Plan::finished)
      .def(
          "add_request",
          [](Plan& plan, RequestId id, Ids prompt, const SamplingConfig& sampling) {
            plan.new_requests.push_back({id, {prompt.data(), prompt.data() + prompt.shape(0)}, sampling});
          },
          "request_id"_a, "prompt"_a.noconvert(), "sampling"_a)
      .def(
          "add_table",
          [](Plan& plan, RequestId id, int64_t start, Ids blocks) {
            plan.tables.push_back({id, start, {blocks.data(), blocks.data() + blocks.shape(0)}});
          },
          "request_id"_a, "start"_a, "block_ids"_a.noconvert())
      .def(
          "add_chunk",
          [](Plan& plan, RequestId id, int64_t start, int64_t num_tokens) { plan.chunks.push_back({id, start, num_tokens}); },
          "request_id"_a, "start"_a, "num_tokens"_a);
  nb::class_<ChunkOutput>(m, "ChunkOutput")
      .def_ro("token", &ChunkOutput::token)
      .def_prop_ro("logprobs", [](ChunkOutput& chunk) { return tuples_of(chunk.logprobs); })
      .def_prop_ro("prompt_logprobs", [](ChunkOutput& chunk) { return tuples_of(chunk.prompt_logprobs); })
      .def_prop_ro("has_details",
                   [](const ChunkOutput& chunk) {
                     return !chunk.logprobs.empty() || !chunk.prompt_logprobs.empty() || !chunk.error.empty();
                   })
      .def_ro("error", &ChunkOutput::error);
  nb::class_<StepOutput>(m, "StepOutput")
      .def_ro("chunks", &StepOutput::chunks)
      .def_ro("compute_ms", &StepOutput::compute_ms)
      .def_ro("cancelled", &StepOutput::cancelled);
}

void init_model(Model* self, const ModelConfig& config, const Limits& limits, const std::vector<TensorTuple>& tensors,
                const std::string& isa, int num_threads) {
  const std::vector<TensorSource> sources = sources_of(tensors);
  const KernelTable& kernels = select_kernels(isa);
  nb::gil_scoped_release nogil;
  new (self) Model(config, limits, sources, kernels, num_threads);
}

nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>> kv_bytes(nb::handle_t<Model> self) {
  const KvMemory& kv = nb::cast<Model&>(self).kv();
  return {kv.data(), {kv.size()}, self};
}

nb::typed<nb::dict, nb::str, double> phase_seconds(Model& model) {
  nb::typed<nb::dict, nb::str, double> out;
  for (size_t i = 0; i < kPhaseNames.size(); ++i) out[kPhaseNames[i]] = model.phase_times().seconds[i];
  return out;
}

}  // namespace

void bind_model(nb::module_& m) {
  static PyObject* const out_of_memory = nb::exception<OutOfMemory>(m, "OutOfMemory", PyExc_MemoryError).ptr();
  static_cast<void>(out_of_memory);
  bind_config(m);
  bind_plan(m);
  m.def(
      "model_weight_bytes", [](const std::vector<TensorTuple>& tensors) { return Weights::bytes(sources_of(tensors)); },
      "tensors"_a);
  m.def(
      "model_scratch_bytes",
      [](const ModelConfig& config, const Limits& limits, int num_threads) {
        check_config(config, limits);
        return Scratch::bytes(config, limits, num_threads);
      },
      "config"_a, "limits"_a, "num_threads"_a);
  m.def(
      "kv_layout_sizes",
      [](const ModelConfig& config, const std::string& format, int layer, bool is_value, int kv_head) {
        const KvLayout layout = kv_layout(config, value_of("KV format", kKvFormats, format));
        return std::make_tuple(layout.head_bytes(), layout.block_bytes(), layout.offset(layer, is_value, kv_head));
      },
      "config"_a, "kv_format"_a, "layer"_a, "is_value"_a, "kv_head"_a);
  nb::class_<Model>(m, "Model")
      .def("__init__", &init_model, "config"_a, "limits"_a, "tensors"_a, "isa"_a, "num_threads"_a)
      .def("submit", &Model::submit, "plan"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("result", &Model::result, nb::call_guard<nb::gil_scoped_release>())
      .def("cancel", &Model::cancel)
      .def_prop_ro("isa", [](const Model& model) { return isa_name(model.kernels().isa); })
      .def_prop_ro("num_threads", &Model::num_threads)
      .def_prop_ro("weight_bytes", &Model::weight_bytes)
      .def_prop_ro("scratch_bytes", &Model::scratch_bytes)
      .def("kv_bytes", &kv_bytes)
      .def(
          "profile", [](Model& model, bool on) { model.phase_times().enabled = on; }, "on"_a)
      .def("phase_seconds", &phase_seconds);
}

}  // namespace hasten
