// One step as the phases see it: a list of rows, where each chunk's rows are, and which rows need logits.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "model/request.h"

namespace hasten {

struct TokenLogprob {
  int32_t token = -1;
  float logprob = 0.0F;
  std::vector<std::pair<int32_t, float>> top;  // best first, ties to the lower id
};

struct ChunkOutput {
  int32_t token = -1;  // -1: none was drawn
  std::vector<TokenLogprob> logprobs;
  std::vector<TokenLogprob> prompt_logprobs;
  std::string error;
};

// Rows [row_begin, row_begin + num_tokens) are tokens [start, start + num_tokens) of `request`.
struct ChunkRun {
  Request* request = nullptr;
  int row_begin = 0;
  int start = 0;
  int num_tokens = 0;
};

struct Row {
  int32_t token = 0;
  int position = 0;
  int chunk = 0;
};

// A row of the step whose logits are computed: to draw the next token, to score the next prompt token, or both.
struct LogitRow {
  int row = 0;
  int chunk = 0;
  bool draws = false;
  int32_t prompt_token = -1;  // the prompt token to score, -1: none
  int32_t drawn = -1;
  TokenLogprob logprob;
  TokenLogprob prompt_logprob;
  bool failed = false;  // NaN logits
};

struct Step {
  std::vector<ChunkRun> chunks;
  std::vector<Row> rows;
  std::vector<LogitRow> logit_rows;  // in the order of chunks and positions

  int num_rows() const { return static_cast<int>(rows.size()); }
  int num_logit_rows() const { return static_cast<int>(logit_rows.size()); }
};

}  // namespace hasten
