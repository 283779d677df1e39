#pragma once

#include <torch/torch.h>

#include <cmath>
#include <string>

/// A byte-level GPT: pre-LayerNorm, learned positions, output tied to the token embedding; 120,064 parameters.
struct GptShape {
  int64_t vocabulary = 256, context = 64, width = 64, heads = 2, layers = 2;
};

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(const GptShape& shape)
      : heads(shape.heads),
        attention_norm(register_module("attention_norm", norm(shape))),
        qkv(register_module("qkv", linear(shape.width, 3 * shape.width, false))),
        attention_out(register_module("attention_out", linear(shape.width, shape.width, false))),
        mlp_norm(register_module("mlp_norm", norm(shape))),
        up(register_module("up", linear(shape.width, 4 * shape.width, true))),
        down(register_module("down", linear(4 * shape.width, shape.width, true))) {}

  torch::Tensor forward(torch::Tensor x) {  // [batch, time, width]
    x = x + attention_out(attend(qkv(attention_norm(x))));
    return x + down(torch::gelu(up(mlp_norm(x)), "tanh"));
  }

  static torch::nn::LayerNorm norm(const GptShape& shape) {
    return torch::nn::LayerNorm(torch::nn::LayerNormOptions({shape.width}));
  }
  static torch::nn::Linear linear(int64_t in, int64_t out, bool bias) {
    return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(bias));
  }
  torch::Tensor attend(const torch::Tensor& x) {
    const auto split =
        x.unflatten(2, {3, heads, -1}).permute({2, 0, 3, 1, 4});  // [3, batch, heads, time, width / heads]
    const auto mixed = at::scaled_dot_product_attention(split[0], split[1], split[2], {}, 0.0, /*is_causal=*/true);
    return mixed.transpose(1, 2).flatten(2);
  }

  int64_t heads;
  torch::nn::LayerNorm attention_norm;
  torch::nn::Linear qkv, attention_out;
  torch::nn::LayerNorm mlp_norm;
  torch::nn::Linear up, down;
};
TORCH_MODULE(Block);

struct GptImpl : torch::nn::Module {
  explicit GptImpl(GptShape shape = {})
      : shape(shape),
        tokens(register_module("tokens", torch::nn::Embedding(shape.vocabulary, shape.width))),
        positions(register_module("positions", torch::nn::Embedding(shape.context, shape.width))),
        blocks(register_module("blocks", torch::nn::ModuleList())),
        norm(register_module("norm", BlockImpl::norm(shape))) {
    for (int64_t i = 0; i < shape.layers; ++i) blocks->push_back(Block(shape));
    initialize();
  }

  /// Bytes as int64 [batch, time] to logits [batch, time, vocabulary].
  torch::Tensor forward(const torch::Tensor& bytes) {
    auto x = tokens(bytes) + positions->weight.narrow(0, 0, bytes.size(1));
    for (const auto& block : *blocks) x = block->as<Block>()->forward(x);
    return torch::linear(norm(x), tokens->weight);
  }

  torch::Device device() const { return tokens->weight.device(); }

  /// N(0, 0.06): at this width the usual 0.02 costs a third of a bit per byte after 300 steps. What is added to the
  /// residual stream starts smaller, so that the stream's variance does not grow with the number of layers.
  void initialize() {
    const torch::NoGradGuard no_grad;
    const double residual = 1 / std::sqrt(2.0 * static_cast<double>(shape.layers));
    for (auto& entry : named_parameters()) {
      const std::string& name = entry.key();
      auto& value = entry.value();
      if (value.dim() == 1) {
        if (name.ends_with("bias")) value.zero_();
        continue;
      }
      const bool adds = name.ends_with("attention_out.weight") || name.ends_with("down.weight");
      value.normal_(0, adds ? 0.06 * residual : 0.06);
    }
  }

  GptShape shape;
  torch::nn::Embedding tokens, positions;
  torch::nn::ModuleList blocks;
  torch::nn::LayerNorm norm;
};
TORCH_MODULE(Gpt);

/// Continues `text` by `count` bytes drawn from the model.
inline std::string sample(Gpt& model, std::string text, int64_t count, double temperature = 0.8) {
  const torch::NoGradGuard no_grad;
  std::vector<int64_t> bytes(text.begin(), text.end());
  for (auto& byte : bytes) byte &= 0xff;
  for (; count > 0; --count) {
    const auto seen = std::min<int64_t>(model->shape.context, static_cast<int64_t>(bytes.size()));
    const auto window = torch::from_blob(&*(bytes.end() - seen), {1, seen}, torch::kLong);
    const auto logits = model->forward(window.to(model->device()))[0][-1];
    bytes.push_back(torch::multinomial(torch::softmax(logits / temperature, 0), 1).item<int64_t>());
  }
  return {bytes.begin(), bytes.end()};
}
