#include "model/sampler.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "model/rng.h"

namespace hasten {
namespace {

// Weights relative to the best below this are dropped: all of a large vocabulary's together stay far under the 2^-53 a
// uniform number can tell apart.
constexpr float kNegligible = 1e-28F;

void apply_penalties(const Request& request, float* logits) {
  const SamplingConfig& sampling = request.sampling;
  const auto repetition = static_cast<float>(sampling.repetition_penalty);
  const auto presence = static_cast<float>(sampling.presence_penalty);
  const auto frequency = static_cast<float>(sampling.frequency_penalty);
  for (const auto& [token, use] : request.uses) {
    float value = logits[token];
    value = value > 0.0F ? value / repetition : value * repetition;
    if (use.num_output > 0) value -= frequency * static_cast<float>(use.num_output) + presence;
    logits[token] = value;
  }
}

// The logits after penalties and bias: `logits` itself when the request has none.
const float* adjusted(const Request& request, const float* logits, int vocab, float* copy) {
  const SamplingConfig& sampling = request.sampling;
  if (!sampling.has_penalties() && sampling.logit_bias.empty()) return logits;
  std::copy_n(logits, vocab, copy);
  for (const auto& [token, bias] : sampling.logit_bias) {
    if (token >= 0 && token < vocab) copy[token] += static_cast<float>(bias);
  }
  if (sampling.has_penalties()) apply_penalties(request, copy);
  return copy;
}

// weights[i] = exp((logits[i] − best) / temperature), 0 where negligible or not a number. Returns their sum, in id order.
double softmax_weights(const KernelTable& kernels, const float* logits, int vocab, float best, float inverse_temperature,
                       float* weights) {
  for (int i = 0; i < vocab; ++i) weights[i] = logits[i] - best;
  kernels.exp_scaled(weights, inverse_temperature, 0.0F, weights, vocab);
  double total = 0.0;
  for (int i = 0; i < vocab; ++i) {
    if (!(weights[i] >= kNegligible)) weights[i] = 0.0F;
    total += static_cast<double>(weights[i]);
  }
  return total;
}

// Ids from the best down, produced in growing runs: a cut usually needs few of them, and sorting all costs milliseconds.
class Ranking {
 public:
  Ranking(const float* logits, int32_t* ids, int count) : logits_(logits), ids_(ids), count_(count) {}

  int count() const { return count_; }

  int32_t operator[](int rank) {
    while (rank >= sorted_) grow();
    return ids_[rank];
  }

 private:
  void grow() {
    const int end = std::min(count_, sorted_ == 0 ? 64 : sorted_ * 4);
    const auto better = [this](int32_t a, int32_t b) { return logits_[a] != logits_[b] ? logits_[a] > logits_[b] : a < b; };
    if (end < count_) std::nth_element(ids_ + sorted_, ids_ + end, ids_ + count_, better);
    std::sort(ids_ + sorted_, ids_ + end, better);
    sorted_ = end;
  }

  const float* logits_;
  int32_t* ids_;
  int count_;
  int sorted_ = 0;
};

// What top_k leaves; without it, what can matter to top_p: the ids left out weigh less than 1 − top_p together.
int candidates(const SamplingConfig& sampling, const float* logits, const float* weights, int vocab, double total,
               int32_t* ids) {
  if (sampling.top_k > 0 && sampling.top_k < vocab) {
    const int count = largest(logits, vocab, static_cast<int>(sampling.top_k), ids);
    return static_cast<int>(std::find_if(ids, ids + count, [&](int32_t id) { return weights[id] == 0.0F; }) - ids);
  }
  const double threshold = 0.5 * (1.0 - sampling.top_p) * total / vocab;
  int count = 0;
  for (int i = 0; i < vocab; ++i) {
    if (weights[i] > 0.0F && static_cast<double>(weights[i]) >= threshold) ids[count++] = i;
  }
  return count;
}

// top_k, top_p, min_p: the kept ids are the first `n` of the ranking.
int kept(const SamplingConfig& sampling, Ranking& ranking, const float* weights, double total) {
  const int limit = ranking.count();
  int n = limit;
  if (sampling.top_p < 1.0) {
    double sum = 0.0;
    for (n = 0; n < limit && sum < sampling.top_p * total; ++n) sum += static_cast<double>(weights[ranking[n]]);
    n = std::max(n, 1);
  }
  if (sampling.min_p > 0.0) {
    int m = 0;
    while (m < n && static_cast<double>(weights[ranking[m]]) >= sampling.min_p) ++m;
    n = std::max(m, 1);
  }
  return n;
}

// Draw among ids(0 … n − 1) in that order.
template <typename Ids>
int32_t pick(const Ids& ids, int n, const float* weights, double u) {
  double total = 0.0;
  for (int i = 0; i < n; ++i) total += static_cast<double>(weights[ids(i)]);
  const double target = u * total;
  double sum = 0.0;
  int32_t last = ids(0);
  for (int i = 0; i < n; ++i) {
    const int32_t id = ids(i);
    if (weights[id] == 0.0F) continue;
    last = id;
    sum += static_cast<double>(weights[id]);
    if (sum > target) break;
  }
  return last;  // rounding may leave the target just above the whole sum
}

}  // namespace

bool is_usable(const float* logits, int vocab) {
  // largest |x| and largest x as ordered integers, in one pass without branches: NaN lies above infinity
  int32_t widest = 0, best = std::numeric_limits<int32_t>::min();
  for (int i = 0; i < vocab; ++i) {
    int32_t bits;
    std::memcpy(&bits, logits + i, sizeof(bits));
    const int32_t size = bits & 0x7fffffff;
    widest = std::max(widest, size);
    best = std::max(best, bits < 0 ? -size : bits);
  }
  constexpr int32_t kInfinity = 0x7f800000;
  return widest <= kInfinity && best < kInfinity && best > -kInfinity;
}

int32_t draw_token(const KernelTable& kernels, const Request& request, int64_t position, const float* raw_logits, int vocab,
                   const SamplerScratch& scratch) {
  const SamplingConfig& sampling = request.sampling;
  const float* const logits = adjusted(request, raw_logits, vocab, scratch.adjusted);
  const int best = kernels.argmax(logits, vocab);
  const auto inverse_temperature = static_cast<float>(1.0 / sampling.temperature);
  // a temperature so small that its inverse overflows is greedy to the last bit
  if (best < 0 || sampling.temperature == 0.0 || !std::isfinite(inverse_temperature) || !std::isfinite(logits[best]))
    return best;

  float* const weights = scratch.weights;
  double total = softmax_weights(kernels, logits, vocab, logits[best], inverse_temperature, weights);
  const double u = uniform(sampling.seed, static_cast<uint64_t>(position));
  const bool has_top_k = sampling.top_k > 0 && sampling.top_k < vocab;
  if (!has_top_k && sampling.top_p >= 1.0) {
    if (sampling.min_p > 0.0) {
      for (int i = 0; i < vocab; ++i) {
        if (static_cast<double>(weights[i]) < sampling.min_p) weights[i] = 0.0F;
      }
    }
    return pick([](int i) { return i; }, vocab, weights, u);
  }
  const int count = candidates(sampling, logits, weights, vocab, total, scratch.order);
  Ranking ranking(logits, scratch.order, count);
  if (has_top_k) {
    total = 0.0;
    for (int i = 0; i < count; ++i) total += static_cast<double>(weights[ranking[i]]);
  }
  const int n = kept(sampling, ranking, weights, total);
  return pick([&](int i) { return ranking[i]; }, n, weights, u);
}

int largest(const float* x, int n, int count, int32_t* ids) {
  const auto better = [x](int32_t a, int32_t b) { return x[a] != x[b] ? x[a] > x[b] : a < b; };
  const int room = std::max(2 * count, 64);
  float bar = -std::numeric_limits<float>::infinity();  // a later index that only reaches the bar loses to those kept
  int held = 0;
  for (int i = 0; i < n; ++i) {
    if (!(x[i] > bar)) continue;
    ids[held++] = i;
    if (held >= room && held > count) {
      std::nth_element(ids, ids + count - 1, ids + held, better);
      bar = x[ids[count - 1]];
      held = count;
    }
  }
  std::sort(ids, ids + held, better);
  return std::min(held, count);
}

bool token_logprob(const KernelTable& kernels, const float* logits, int vocab, int32_t token, int num_top, int32_t* order,
                   TokenLogprob* out) {
  const float sum = kernels.log_sum_exp(logits, vocab);
  if (!std::isfinite(sum)) return false;
  out->token = token;
  out->logprob = logits[token] - sum;
  const int count = num_top > 0 ? largest(logits, vocab, num_top, order) : 0;
  for (int i = 0; i < count; ++i) out->top.emplace_back(order[i], logits[order[i]] - sum);
  return true;
}

}  // namespace hasten
