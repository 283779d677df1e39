#pragma once

#include <cmath>

#include "codec/wire.hpp"
#include "round/replica.hpp"

/// Rounds whose deltas travel by a codec, and their definition written out.

namespace outerloop::testing::coded {

inline constexpr int64_t numel = 5003;  // of two tensors, neither a multiple of any block

struct Model {
  Tensor a = parameter(torch::zeros({1000})), b = parameter(torch::zeros({numel - 1000}));
  std::vector<Tensor> all() const { return {a, b}; }
  void set_gradient(const Tensor& flat) {
    a.mutable_grad() = flat.narrow(0, 0, 1000).clone();
    b.mutable_grad() = flat.narrow(0, 1000, numel - 1000).clone();
  }
};

inline Tensor flat_of(const std::vector<Tensor>& anchors) {
  return torch::cat({anchors[0].flatten(), anchors[1].flatten()});
}

/// What rank `rank` moves by in round `round`.
inline Tensor moved(int rank, int round) { return normal({numel}, static_cast<uint64_t>(100 * round + rank + 1)); }

struct Setting {
  CodecPtr codec;
  std::optional<ErrorFeedback> feedback = std::nullopt;
  std::vector<double> weights = {};  ///< of ranks; none: all alike
};

using Group = std::vector<std::shared_ptr<Communicator>>;

inline Group group_of(int ranks) { return gloo_group(ranks, std::chrono::seconds(60), 0); }

/// The anchors of all ranks after `rounds` rounds.
inline std::vector<Tensor> held(const Setting& setting, const Group& group, int rounds) {
  return run_ranks(group, [&](std::shared_ptr<Communicator> comm) {
    Model model;
    DiLoCoOptions options = averaging({.codec = setting.codec, .error_feedback = setting.feedback});
    const int rank = comm->rank();
    if (!setting.weights.empty()) options.sync.weight = [&, rank] { return setting.weights[rank]; };
    options.sync.on_sync = [](const SyncReport& report) {
      EXPECT_EQ(report.outcome, Outcome::committed) << report.reason;
    };
    DiLoCoOptimizer optimizer(torch::optim::SGD(model.all(), 1.0), comm, options);
    for (int round = 0; round < rounds; ++round) {
      model.set_gradient(moved(rank, round));
      optimizer.step();
    }
    return flat_of(optimizer.anchors());
  });
}

inline Tensor fused(double factor, const Tensor& x, const Tensor& y) {  // factor * x + y, rounded once
  Tensor sum = torch::empty_like(y);
  for (int64_t i = 0; i < y.numel(); ++i) {
    sum.data_ptr<float>()[i] = std::fmaf(static_cast<float>(factor), x.data_ptr<float>()[i], y.data_ptr<float>()[i]);
  }
  return sum;
}

/// The same by the definition, all ranks in one place.
inline Tensor defined(const Setting& setting, int ranks, int rounds) {
  const Codec& codec = *setting.codec;
  const bool shards = codec.reduction() == Reduction::shards && ranks > 1;
  const int64_t per_rank = (numel + ranks - 1) / ranks;
  const int64_t length =
      shards ? std::min(numel, (per_rank + codec.block() - 1) / codec.block() * codec.block()) : numel;
  const std::vector<double> weights = setting.weights.empty() ? std::vector<double>(ranks, 1) : setting.weights;
  double total = 0;
  for (const double weight : weights) total += weight;
  Tensor anchor = torch::zeros({numel}), owed_by_owners = torch::zeros({numel});
  std::vector<Tensor> owed;
  for (int rank = 0; rank < ranks; ++rank) owed.push_back(torch::zeros({numel}));
  const auto kept = [&](const Tensor& residual) { return residual.to(setting.feedback->residual).to(at::kFloat); };
  for (int round = 0; round < rounds; ++round) {
    std::vector<Tensor> deltas(ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      deltas[rank] = anchor - (anchor - moved(rank, round));
      if (setting.feedback) deltas[rank] = fused(setting.feedback->decay, owed[rank], deltas[rank]);
    }
    Tensor mean_delta = torch::empty({numel});
    for (int64_t begin = 0; begin < numel; begin += length) {
      const int64_t size = std::min(length, numel - begin);
      Tensor sum = torch::zeros({size});
      for (int rank = 0; rank < ranks; ++rank) {
        const Tensor delta = deltas[rank].narrow(0, begin, size), arrives = through(codec, delta);
        if (weights[rank] != 0) sum = fused(weights[rank], arrives, sum);
        if (setting.feedback && weights[rank] != 0) owed[rank].narrow(0, begin, size).copy_(kept(delta - arrives));
      }
      sum = ranks > 1 ? sum * static_cast<float>(1 / total) : through(codec, deltas[0].narrow(0, begin, size));
      if (shards) {
        if (setting.feedback) sum = fused(setting.feedback->decay, owed_by_owners.narrow(0, begin, size), sum);
        const Tensor again = through(codec, sum);
        if (setting.feedback) owed_by_owners.narrow(0, begin, size).copy_(kept(sum - again));
        sum = again;
      }
      mean_delta.narrow(0, begin, size).copy_(sum);
    }
    anchor = fused(-1, mean_delta, anchor);
  }
  return anchor;
}

inline std::vector<CodecPtr> deterministic_codecs() {
  std::vector<CodecPtr> codecs;
  for (const CodecPtr& codec : all_codecs()) {
    const std::string name = codec->describe();
    if (name != "fp32" && name.find("stochastic") == name.npos) codecs.push_back(codec);
  }
  return codecs;
}

/// One of the library's that it does not recognise: rounds go stage by stage.
class Foreign : public Codec {
 public:
  explicit Foreign(CodecPtr codec) : codec_(std::move(codec)) {}
  std::string describe() const override { return codec_->describe(); }
  Reduction reduction() const override { return codec_->reduction(); }
  int64_t block() const override { return codec_->block(); }
  int64_t wire_bytes(int64_t n) const override { return codec_->wire_bytes(n); }
  void encode(const Tensor& delta, const Tensor& wire, uint64_t key) const override {
    codec_->encode(delta, wire, key);
  }
  void decode(const Tensor& wire, const Tensor& delta) const override { codec_->decode(wire, delta); }

 private:
  CodecPtr codec_;
};

}  // namespace outerloop::testing::coded
