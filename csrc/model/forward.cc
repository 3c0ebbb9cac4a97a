#include "model/forward.h"

#include <algorithm>

#include "model/sampler.h"

namespace hasten {
namespace {

constexpr int kPrepareRows = 4;  // rows in a piece of norm and quantize work

Tiling rows_only(int num_rows, int rows) {
  Tiling out;
  out.num_panels = 1;
  out.num_rows = num_rows;
  out.rows = rows;
  out.row_blocks = (num_rows + rows - 1) / rows;
  return out;
}

}  // namespace

Forward::Forward(const ModelConfig& model, const KernelTable& kernels, const Weights& weights, const KvMemory& kv,
                 Scratch& scratch, int num_threads)
    : model_(model),
      kernels_(kernels),
      weights_(weights),
      kv_(kv),
      scratch_(scratch),
      rope_(model.rope),
      attention_(model, kernels, kv, scratch, num_threads),
      num_threads_(num_threads) {}

void Forward::run(Member& member, Step& step) {
  if (!embed(member, step)) return;
  for (int i = 0; i < model_.num_layers; ++i) {
    if (!layer(member, step, i)) return;
  }
  head(member, step);
}

bool Forward::end_phase(Member& member, Phase phase) {
  if (!times_.enabled) return member.barrier();
  const std::function<void()> record = [&] { times_.end(phase); };
  return member.barrier(&record);
}

bool Forward::embed(Member& member, const Step& step) {
  const int half = rope_.half_dim();
  for (int row; (row = member.next()) < step.num_rows();) {
    const Row& at = step.rows[static_cast<size_t>(row)];
    kernels_.unpack_row(weights_.embed(), at.token, scratch_.x + int64_t{row} * model_.hidden_size);
    rope_.angles(at.position, scratch_.cos + int64_t{row} * half, scratch_.sin + int64_t{row} * half);
  }
  return end_phase(member, Phase::kEmbed);
}

bool Forward::prepare(Member& member, const Source& source, int num_rows, Activations* out) {
  const bool local = num_rows <= kLocalRows;
  ThreadScratch& scratch = own(member);
  float* const normed = local ? scratch.normed : scratch_.normed;
  out->rows = source.norm != nullptr ? normed : source.in;
  out->stride = source.k;
  out->quantized = local ? scratch.quantized : scratch_.quantized;
  out->quantized.k = source.k;
  out->quantized.k_block = k_block_for(source.k);
  if (source.norm == nullptr && !source.quantize) return true;

  const auto run = [&](int row_begin, int row_end) {
    for (int row = row_begin; source.norm != nullptr && row < row_end; ++row) {
      const int64_t at = int64_t{row} * source.k;
      kernels_.rms_norm(source.in + at, source.norm, normed + at, source.k, model_.norm_eps);
    }
    if (source.quantize) kernels_.quantize_rows(out->rows, out->stride, row_begin, row_end, out->quantized);
  };
  if (local) {
    run(0, num_rows);
    return true;
  }
  const Tiling tiling = rows_only(num_rows, kPrepareRows);
  for (int i; (i = member.next()) < tiling.count();) run(tiling.piece(i).row_begin, tiling.piece(i).row_end);
  return end_phase(member, Phase::kPrepare);
}

bool Forward::layer(Member& member, const Step& step, int index) {
  const LayerWeights& w = weights_.layer(index);
  const int rows = step.num_rows();
  Activations x;
  const bool quantize_qkv = is_quantized(w.q) || is_quantized(w.k) || is_quantized(w.v);
  if (!prepare(member, {scratch_.x, model_.hidden_size, w.attn_norm, quantize_qkv}, rows, &x)) return false;
  qkv(member, step, index, x);
  if (!end_phase(member, Phase::kQkv)) return false;

  attention_.run(member, step, index);
  if (!end_phase(member, Phase::kAttention)) return false;

  if (!prepare(member, {scratch_.attention, model_.q_size(), nullptr, is_quantized(w.o)}, rows, &x)) return false;
  add_product(member, w.o, x, rows);
  if (!end_phase(member, Phase::kOutput)) return false;

  const bool quantize_ffn = is_quantized(w.gate) || is_quantized(w.up);
  if (!prepare(member, {scratch_.x, model_.hidden_size, w.ffn_norm, quantize_ffn}, rows, &x)) return false;
  gate_up(member, w, x, rows);
  if (!end_phase(member, Phase::kGateUp)) return false;

  if (!prepare(member, {scratch_.ffn, model_.intermediate_size, nullptr, is_quantized(w.down)}, rows, &x)) return false;
  add_product(member, w.down, x, rows);
  return end_phase(member, Phase::kDown);
}

// A piece is one head of Q, K or V for a block of rows, so that RoPE and the KV write follow while it is in cache.
void Forward::qkv(Member& member, const Step& step, int index, const Activations& x) {
  const int num_heads = model_.num_q_heads + 2 * model_.num_kv_heads;
  Tiling tiling = rows_only(step.num_rows(), std::min(rows_per_block(model_.hidden_size), step.num_rows()));
  tiling.num_panels = num_heads;
  for (int i; (i = member.next()) < tiling.count();) {
    const Tiling::Piece piece = tiling.piece(i);
    qkv_head(step, index, piece.panel_begin, piece.row_begin, piece.row_end, x, own(member));
  }
}

void Forward::qkv_head(const Step& step, int index, int head, int row_begin, int row_end, const Activations& x,
                       ThreadScratch& scratch) {
  const LayerWeights& w = weights_.layer(index);
  const int dim = model_.head_dim;
  const int panels = dim / kPanel;
  const auto piece = [&](int of_matrix) {
    return Tiling::Piece{of_matrix * panels, (of_matrix + 1) * panels, row_begin, row_end};
  };
  if (head >= model_.num_q_heads) {
    const int kv_head = (head - model_.num_q_heads) % model_.num_kv_heads;
    const bool is_value = head >= model_.num_q_heads + model_.num_kv_heads;
    multiply(kernels_, is_value ? w.v : w.k, piece(kv_head), x, scratch.out, dim);
    write_kv(step, index, is_value, kv_head, row_begin, row_end, scratch.out);
    return;
  }
  const int group = model_.group_size();
  const int64_t first = (int64_t{head / group} * step.num_rows() + row_begin) * group + head % group;
  float* const out = scratch_.q + first * dim;
  multiply(kernels_, w.q, piece(head), x, out, int64_t{group} * dim);
  for (int row = row_begin; row < row_end; ++row) rotate(row, out + int64_t{row - row_begin} * group * dim);
}

void Forward::rotate(int row, float* head) {
  const int64_t angle = int64_t{row} * rope_.half_dim();
  kernels_.rope(head, scratch_.cos + angle, scratch_.sin + angle, model_.rope.dim, model_.rope.interleaved);
  if (kv_.layout().format == KvFormat::kInt8) kernels_.hadamard(head, model_.head_dim);
}

void Forward::write_kv(const Step& step, int index, bool is_value, int kv_head, int row_begin, int row_end, float* heads) {
  const int dim = model_.head_dim;
  const KvFormat format = kv_.layout().format;
  for (int row = row_begin; row < row_end; ++row) {
    float* const head = heads + int64_t{row - row_begin} * dim;
    const Row& at = step.rows[static_cast<size_t>(row)];
    const Request& request = *step.chunks[static_cast<size_t>(at.chunk)].request;
    const int32_t block = request.block_table[static_cast<size_t>(at.position / kKvBlock)];
    uint8_t* const base = kv_.head(block, index, is_value, kv_head);
    if (is_value) {
      kernels_.write_v(format, head, dim, at.position % kKvBlock, base);
    } else {
      rotate(row, head);
      kernels_.write_k(format, head, dim, at.position % kKvBlock, base);
    }
  }
}

// x += input · w
void Forward::add_product(Member& member, const PackedMatrix& w, const Activations& x, int num_rows) {
  const Tiling tiling = tile(w, num_rows, num_threads_);
  float* const out = own(member).out;
  for (int i; (i = member.next()) < tiling.count();) {
    const Tiling::Piece piece = tiling.piece(i);
    const int begin = kPanel * piece.panel_begin;
    const int columns = std::min(kPanel * piece.panel_end, w.n) - begin;
    multiply(kernels_, w, piece, x, out, columns);
    for (int row = piece.row_begin; row < piece.row_end; ++row) {
      kernels_.add(scratch_.x + int64_t{row} * model_.hidden_size + begin, out + int64_t{row - piece.row_begin} * columns,
                   columns);
    }
  }
}

void Forward::gate_up(Member& member, const LayerWeights& w, const Activations& x, int num_rows) {
  const Tiling tiling = tile(w.gate, num_rows, num_threads_);
  ThreadScratch& scratch = own(member);
  for (int i; (i = member.next()) < tiling.count();) {
    const Tiling::Piece piece = tiling.piece(i);
    const int begin = kPanel * piece.panel_begin;
    const int columns = std::min(kPanel * piece.panel_end, w.gate.n) - begin;
    multiply(kernels_, w.gate, piece, x, scratch.out, columns);
    multiply(kernels_, w.up, piece, x, scratch.out2, columns);
    for (int row = piece.row_begin; row < piece.row_end; ++row) {
      const int64_t at = int64_t{row - piece.row_begin} * columns;
      float* const out = scratch_.ffn + int64_t{row} * model_.intermediate_size + begin;
      kernels_.silu_mul(scratch.out + at, scratch.out2 + at, out, columns);
    }
  }
}

bool Forward::head(Member& member, Step& step) {
  for (int begin = 0; begin < step.num_logit_rows(); begin += scratch_.head_rows) {
    if (!head_block(member, step, begin, std::min(begin + scratch_.head_rows, step.num_logit_rows()))) return false;
  }
  return true;
}

bool Forward::head_block(Member& member, Step& step, int begin, int end) {
  const int hidden = model_.hidden_size;
  const PackedMatrix& w = weights_.head();
  const int rows = end - begin;
  // Gather, so that the head sees consecutive rows. Every member copies every row when it norms for itself.
  const auto gather = [&](int i, float* to) {
    const int64_t row = step.logit_rows[static_cast<size_t>(begin + i)].row;
    std::copy_n(scratch_.x + row * hidden, hidden, to);
  };
  Activations x;
  const float* in = own(member).head_in;
  if (rows <= kLocalRows) {
    for (int i = 0; i < rows; ++i) gather(i, own(member).head_in + int64_t{i} * hidden);
  } else {
    for (int i; (i = member.next()) < rows;) gather(i, scratch_.head_in + int64_t{i} * hidden);
    if (!end_phase(member, Phase::kPrepare)) return false;
    in = scratch_.head_in;
  }
  if (!prepare(member, {in, hidden, weights_.final_norm(), is_quantized(w)}, rows, &x)) return false;
  const Tiling tiling = tile(w, rows, num_threads_);
  for (int i; (i = member.next()) < tiling.count();) {
    const Tiling::Piece piece = tiling.piece(i);
    float* const out = scratch_.logits + int64_t{piece.row_begin} * model_.vocab_size + kPanel * piece.panel_begin;
    multiply(kernels_, w, piece, x, out, model_.vocab_size);
  }
  if (!end_phase(member, Phase::kHead)) return false;
  for (int i; (i = member.next()) < rows;) {
    finish_row(step, step.logit_rows[static_cast<size_t>(begin + i)], scratch_.logits + int64_t{i} * model_.vocab_size,
               own(member));
  }
  return end_phase(member, Phase::kSample);
}

void Forward::finish_row(const Step& step, LogitRow& row, const float* logits, ThreadScratch& scratch) {
  const ChunkRun& chunk = step.chunks[static_cast<size_t>(row.chunk)];
  const SamplingConfig& sampling = chunk.request->sampling;
  const int vocab = model_.vocab_size;
  if (row.prompt_token >= 0) {
    row.failed = !token_logprob(kernels_, logits, vocab, row.prompt_token, sampling.prompt_logprobs, scratch.sampler.order,
                                &row.prompt_logprob);
  }
  if (!row.draws || row.failed) return;
  row.failed = !is_usable(logits, vocab);
  if (row.failed) return;
  const int64_t position = step.rows[static_cast<size_t>(row.row)].position + 1;
  row.drawn = draw_token(kernels_, *chunk.request, position, logits, vocab, scratch.sampler);
  row.failed = row.drawn < 0;
  if (row.failed || sampling.logprobs < 0) return;
  row.failed = !token_logprob(kernels_, logits, vocab, row.drawn, sampling.logprobs, scratch.sampler.order, &row.logprob);
}

}  // namespace hasten
