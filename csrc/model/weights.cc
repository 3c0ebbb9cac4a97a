#include "model/weights.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <unordered_map>

#include "kernels/pack.h"

namespace hasten {
namespace {

constexpr size_t kPieceBytes = size_t{256} << 10;  // of file per piece of packing work

bool is_norm(const TensorSource& tensor) { return tensor.name.ends_with("norm"); }

size_t tensor_bytes(const TensorSource& tensor) {
  return is_norm(tensor) ? static_cast<size_t>(tensor.k) * sizeof(float) : packed_bytes(tensor.format, tensor.n, tensor.k);
}

// Finds tensors by name and checks their shapes against the config.
class Directory {
 public:
  Directory(const std::vector<TensorSource>& tensors, const std::vector<uint8_t*>& places)
      : tensors_(tensors), places_(places) {
    for (size_t i = 0; i < tensors.size(); ++i) index_[tensors[i].name] = i;
  }

  PackedMatrix matrix(const std::string& name, int n, int k) const {
    const size_t i = find(name, n, k);
    return packed_view(tensors_[i].format, n, k, places_[i]);
  }
  const float* norm(const std::string& name, int k) const { return reinterpret_cast<const float*>(places_[find(name, 1, k)]); }

 private:
  size_t find(const std::string& name, int n, int k) const {
    const auto entry = index_.find(name);
    if (entry == index_.end()) throw std::invalid_argument("the model has no tensor " + name);
    const TensorSource& tensor = tensors_[entry->second];
    if (tensor.n != n || tensor.k != k) {
      throw std::invalid_argument("tensor " + name + " has shape (" + std::to_string(tensor.n) + ", " +
                                  std::to_string(tensor.k) + "), the model needs (" + std::to_string(n) + ", " +
                                  std::to_string(k) + ")");
    }
    return entry->second;
  }

  const std::vector<TensorSource>& tensors_;
  const std::vector<uint8_t*>& places_;
  std::unordered_map<std::string, size_t> index_;
};

LayerWeights layer_weights(const Directory& directory, const ModelConfig& config, int layer) {
  const std::string prefix = "layers." + std::to_string(layer) + ".";
  const int hidden = config.hidden_size;
  return {.attn_norm = directory.norm(prefix + "attn_norm", hidden),
          .q = directory.matrix(prefix + "q", config.q_size(), hidden),
          .k = directory.matrix(prefix + "k", config.kv_size(), hidden),
          .v = directory.matrix(prefix + "v", config.kv_size(), hidden),
          .o = directory.matrix(prefix + "o", hidden, config.q_size()),
          .ffn_norm = directory.norm(prefix + "ffn_norm", hidden),
          .gate = directory.matrix(prefix + "gate", config.intermediate_size, hidden),
          .up = directory.matrix(prefix + "up", config.intermediate_size, hidden),
          .down = directory.matrix(prefix + "down", hidden, config.intermediate_size)};
}

struct Piece {
  size_t tensor;
  int panel_begin;
  int panel_end;
};

std::vector<Piece> split(const std::vector<TensorSource>& tensors) {
  std::vector<Piece> pieces;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int num_panels = is_norm(tensors[i]) ? 1 : (tensors[i].n + kPanel - 1) / kPanel;
    const int step = std::max(1, static_cast<int>(kPieceBytes / (tensors[i].row_bytes * kPanel)));
    for (int begin = 0; begin < num_panels; begin += step) pieces.push_back({i, begin, std::min(begin + step, num_panels)});
  }
  return pieces;
}

void pack_all(const std::vector<TensorSource>& tensors, const std::vector<uint8_t*>& places, Team& team) {
  const std::vector<Piece> pieces = split(tensors);
  team.start([&](Member& member) {
    for (int i; (i = member.next()) < static_cast<int>(pieces.size());) {
      const Piece& piece = pieces[static_cast<size_t>(i)];
      const TensorSource& tensor = tensors[piece.tensor];
      uint8_t* const place = places[piece.tensor];
      if (is_norm(tensor)) {
        std::memcpy(place, tensor.rows, tensor_bytes(tensor));
      } else {
        pack_panels(tensor.format, tensor.n, tensor.k, tensor.rows, tensor.row_bytes, piece.panel_begin, piece.panel_end,
                    place);
      }
    }
  });
  team.wait();
}

}  // namespace

int64_t Weights::bytes(const std::vector<TensorSource>& tensors) {
  Arena arena;
  for (const TensorSource& tensor : tensors) arena.take<uint8_t>(static_cast<int64_t>(tensor_bytes(tensor)));
  return static_cast<int64_t>(arena.used());
}

Weights::Weights(const ModelConfig& config, const std::vector<TensorSource>& tensors, Team& team) {
  for (const TensorSource& tensor : tensors) {
    if (!is_norm(tensor)) check_packable(tensor.format, tensor.n, tensor.k, tensor.row_bytes);
  }
  bytes_ = bytes(tensors);
  memory_ = HugeBuffer(static_cast<size_t>(bytes_), "weights");
  Arena arena(memory_.data());
  std::vector<uint8_t*> places;
  for (const TensorSource& tensor : tensors) {
    places.push_back(arena.take<uint8_t>(static_cast<int64_t>(tensor_bytes(tensor))));
  }
  const Directory directory(tensors, places);
  for (int i = 0; i < config.num_layers; ++i) layers_.push_back(layer_weights(directory, config, i));
  embed_ = directory.matrix("embed", config.vocab_size, config.hidden_size);
  head_ = config.tied_head ? embed_ : directory.matrix("head", config.vocab_size, config.hidden_size);
  final_norm_ = directory.norm("final_norm", config.hidden_size);
  pack_all(tensors, places, team);
}

}  // namespace hasten
