// Drawing one token from a row of logits. The result depends on the logits, the request and the position, on nothing else.
//
// Order: logit_bias, repetition penalty (prompt and output), presence and frequency penalty (output); then, at temperature
// 0, the largest logit; else temperature, top_k, top_p (on what top_k left, after temperature), min_p (relative to the
// best), and one uniform number. Ties go to the lower id everywhere.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/kernel_table.h"
#include "model/request.h"
#include "model/step.h"

namespace hasten {

// Working memory of one thread.
struct SamplerScratch {
  float* adjusted = nullptr;  // [vocab] logits after penalties and bias
  float* weights = nullptr;   // [vocab]
  int32_t* order = nullptr;   // [vocab]
};

// Whether a token may be drawn from logits [vocab]: none is NaN and the largest is finite (-inf alone is a mask).
bool is_usable(const float* logits, int vocab);

// Draws the token at `position` from usable logits [vocab]. Returns -1 when penalties and bias left no number.
int32_t draw_token(const KernelTable& kernels, const Request& request, int64_t position, const float* logits, int vocab,
                   const SamplerScratch& scratch);

// The `count` largest of x[n], best first, ties to the lower index; NaN and -inf never count. Returns how many were found;
// `ids` has room for n.
int largest(const float* x, int n, int count, int32_t* ids);

// log-softmax of raw logits at `token`, and the best `num_top`. False when the logits give no number.
bool token_logprob(const KernelTable& kernels, const float* logits, int vocab, int32_t token, int num_top, int32_t* order,
                   TokenLogprob* out);

}  // namespace hasten
