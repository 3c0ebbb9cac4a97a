// The step end to end on a toy model of mixed formats: alone, in company, in chunks, on 1 to 8 threads, cancelled, with bad
// plans. Built to run under the sanitizers: what Python tests for numbers is tested here for memory and races.
#include "model/model.h"

#include <memory>
#include <stdexcept>
#include <thread>

#include "cpu/dispatch.h"
#include "support/check.h"
#include "support/matrices.h"

namespace hasten::test {
namespace {

ModelConfig toy_config() {
  ModelConfig config;
  config.num_layers = 2;
  config.hidden_size = 96;
  config.intermediate_size = 160;
  config.num_q_heads = 6;
  config.num_kv_heads = 2;
  config.head_dim = 16;
  config.vocab_size = 211;  // no multiple of a panel
  config.norm_eps = 1e-5F;
  config.rope.dim = 16;
  config.rope.interleaved = true;
  return config;
}

Limits toy_limits(KvFormat kv_format) {
  return {.num_blocks = 64, .max_model_len = 400, .max_num_batched_tokens = 300, .max_num_seqs = 8, .kv_format = kv_format};
}

// Random tensors of the toy, owned here.
class ToyTensors {
 public:
  explicit ToyTensors(const ModelConfig& c) {
    for (int i = 0; i < c.num_layers; ++i) {
      const std::string prefix = "layers." + std::to_string(i) + ".";
      norm(prefix + "attn_norm", c.hidden_size);
      matrix(prefix + "q", WeightFormat::kQ4_1, c.q_size(), c.hidden_size);
      matrix(prefix + "k", WeightFormat::kQ8_0, c.kv_size(), c.hidden_size);
      matrix(prefix + "v", WeightFormat::kF16, c.kv_size(), c.hidden_size);
      matrix(prefix + "o", WeightFormat::kBF16, c.hidden_size, c.q_size());
      norm(prefix + "ffn_norm", c.hidden_size);
      matrix(prefix + "gate", WeightFormat::kQ4_0, c.intermediate_size, c.hidden_size);
      matrix(prefix + "up", WeightFormat::kQ4_0, c.intermediate_size, c.hidden_size);
      matrix(prefix + "down", WeightFormat::kF32, c.hidden_size, c.intermediate_size);
    }
    norm("final_norm", c.hidden_size);
    matrix("embed", WeightFormat::kF32, c.vocab_size, c.hidden_size);
    matrix("head", WeightFormat::kQ8_0, c.vocab_size, c.hidden_size);
  }
  const std::vector<TensorSource>& sources() const { return sources_; }

 private:
  void matrix(const std::string& name, WeightFormat format, int n, int k) {
    owned_.push_back(std::make_unique<Matrix>(make_matrix(format, n, k, static_cast<uint32_t>(owned_.size() + 1))));
    sources_.push_back({name, format, n, k, owned_.back()->rows.data(), source_row_bytes(format, k)});
  }
  void norm(const std::string& name, int k) { matrix(name, WeightFormat::kF32, 1, k); }

  std::vector<std::unique_ptr<Matrix>> owned_;
  std::vector<TensorSource> sources_;
};

std::unique_ptr<Model> make_model(const ToyTensors& tensors, KvFormat kv_format, int num_threads) {
  return std::make_unique<Model>(toy_config(), toy_limits(kv_format), tensors.sources(), select_kernels("auto"), num_threads);
}

std::vector<int32_t> prompt_of(uint32_t seed, int length) {
  Random random(seed);
  std::vector<int32_t> tokens;
  for (int i = 0; i < length; ++i) tokens.push_back(random.below(211));
  return tokens;
}

std::vector<int32_t> blocks(int first, int count) {
  std::vector<int32_t> ids;
  for (int i = 0; i < count; ++i) ids.push_back(first + i);
  return ids;
}

// Tokens of request 1 (prompt of 290), with `company` other requests and prompt chunks of at most `chunk`.
std::vector<int32_t> answer(Model& model, int chunk, int company, const SamplingConfig& sampling) {
  constexpr int kPrompt = 290;
  Plan plan;
  plan.new_requests.push_back({1, prompt_of(1, kPrompt), sampling});
  plan.tables.push_back({1, 0, blocks(20, 10)});
  for (int i = 0; i < company; ++i) {
    SamplingConfig other;
    other.seed = static_cast<uint64_t>(i);
    other.repetition_penalty = 1.1;
    other.logprobs = 2;
    plan.new_requests.push_back({2 + i, prompt_of(static_cast<uint32_t>(2 + i), 3 + i), other});
    plan.tables.push_back({2 + i, 0, blocks(40 + i, 1)});
  }
  std::vector<int32_t> drawn;
  int64_t computed = 0;
  for (int64_t step = 0; drawn.size() < 6; ++step) {
    const int64_t known = kPrompt + static_cast<int64_t>(drawn.size());
    const int64_t count = std::min<int64_t>(known - computed, chunk);
    plan.chunks = {{1, computed, count}};
    for (int i = 0; i < company && step + 3 + i < 20; ++i) {
      plan.chunks.push_back(step == 0 ? Chunk{2 + i, 0, 3 + i} : Chunk{2 + i, 2 + i + step, 1});
    }
    model.submit(plan);
    const StepOutput out = model.result();
    plan = Plan{};
    computed += count;
    if (out.chunks[0].token >= 0) drawn.push_back(out.chunks[0].token);
    check(out.chunks[0].error.empty(), "error: " + out.chunks[0].error);
  }
  Plan end;
  for (int i = 0; i <= company; ++i) end.finished.push_back(1 + i);
  model.submit(end);
  model.result();
  return drawn;
}

void test_same_tokens_everywhere(const ToyTensors& tensors, KvFormat kv_format) {
  SamplingConfig sampled;
  sampled.seed = 9;
  sampled.top_k = 40;
  sampled.top_p = 0.95;
  sampled.min_p = 0.01;
  SamplingConfig greedy;
  greedy.temperature = 0.0;
  for (const SamplingConfig& sampling : {greedy, sampled}) {
    const std::vector<int32_t> expected = answer(*make_model(tensors, kv_format, 1), 290, 0, sampling);
    for (const int num_threads : {1, 2, 8}) {
      const std::unique_ptr<Model> model = make_model(tensors, kv_format, num_threads);
      check(answer(*model, 64, 0, sampling) == expected, "chunks of 64 on " + std::to_string(num_threads));
      check(answer(*model, 250, 7, sampling) == expected, "in company on " + std::to_string(num_threads));
    }
  }
}

void test_bad_plans(const ToyTensors& tensors) {
  const std::unique_ptr<Model> model = make_model(tensors, KvFormat::kBF16, 2);
  Plan bad;
  bad.new_requests.push_back({1, {5, 211}, {}});
  Plan unknown;
  unknown.chunks.push_back({4, 0, 1});
  for (const Plan& plan : {bad, unknown}) {
    bool refused = false;
    try {
      model->submit(plan);
    } catch (const std::invalid_argument&) {
      refused = true;
    }
    check(refused, "a bad plan was taken");
  }
  Plan good;
  good.new_requests.push_back({1, {5, 6}, {}});
  good.tables.push_back({1, 0, {63}});
  good.chunks.push_back({1, 0, 2});
  model->submit(good);
  check(model->result().chunks[0].token >= 0, "the good plan after the bad ones drew nothing");
}

void test_cancel(const ToyTensors& tensors) {
  const std::unique_ptr<Model> model = make_model(tensors, KvFormat::kInt8, 3);
  Plan plan;
  plan.new_requests.push_back({1, prompt_of(1, 290), {}});
  plan.tables.push_back({1, 0, blocks(0, 10)});
  model->submit(plan);
  model->result();
  plan = Plan{};
  plan.chunks.push_back({1, 0, 290});
  model->submit(plan);
  std::thread canceller([&] { model->cancel(); });
  const StepOutput first = model->result();
  canceller.join();
  check(first.cancelled || first.chunks[0].token >= 0, "neither cancelled nor done");
  if (first.cancelled) {
    model->submit(plan);
    check(model->result().chunks[0].token >= 0, "the same chunk again drew nothing");
  }
  plan.chunks = {{1, 290, 1}};
  model->submit(plan);  // destroyed while it runs
}

}  // namespace
}  // namespace hasten::test

int main() {
  using namespace hasten;
  using namespace hasten::test;
  const ToyTensors tensors(toy_config());
  test_same_tokens_everywhere(tensors, KvFormat::kBF16);
  test_same_tokens_everywhere(tensors, KvFormat::kInt8);
  test_same_tokens_everywhere(tensors, KvFormat::kF32);
  test_bad_plans(tensors);
  test_cancel(tensors);
  return report();
}
