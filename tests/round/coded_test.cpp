#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <set>
#include <sstream>

#include "codec/residuals.hpp"
#include "codec/wire.hpp"
#include "round/replica.hpp"
#include "support/faults.hpp"

// Rounds whose deltas travel by a codec, against their definition written out here.

namespace outerloop::testing::coded {
namespace {

constexpr int64_t numel = 5003;  // of two tensors, neither a multiple of any block

struct Model {
  Tensor a = parameter(torch::zeros({1000})), b = parameter(torch::zeros({numel - 1000}));
  std::vector<Tensor> all() const { return {a, b}; }
  void set_gradient(const Tensor& flat) {
    a.mutable_grad() = flat.narrow(0, 0, 1000).clone();
    b.mutable_grad() = flat.narrow(0, 1000, numel - 1000).clone();
  }
};

Tensor flat_of(const std::vector<Tensor>& anchors) { return torch::cat({anchors[0].flatten(), anchors[1].flatten()}); }

/// What rank `rank` moves by in round `round`.
Tensor moved(int rank, int round) { return normal({numel}, static_cast<uint64_t>(100 * round + rank + 1)); }

struct Setting {
  CodecPtr codec;
  std::optional<ErrorFeedback> feedback = std::nullopt;
  std::vector<double> weights = {};  ///< of ranks; none: all alike
};

using Group = std::vector<std::shared_ptr<Communicator>>;
Group group_of(int ranks) { return gloo_group(ranks, std::chrono::seconds(60), 0); }

/// The anchors of all ranks after `rounds` rounds.
std::vector<Tensor> held(const Setting& setting, const Group& group, int rounds) {
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

Tensor fused(double factor, const Tensor& x, const Tensor& y) {  // factor * x + y, rounded once
  Tensor sum = torch::empty_like(y);
  for (int64_t i = 0; i < y.numel(); ++i) {
    sum.data_ptr<float>()[i] = std::fmaf(static_cast<float>(factor), x.data_ptr<float>()[i], y.data_ptr<float>()[i]);
  }
  return sum;
}

/// The same by the definition, all ranks in one place.
Tensor defined(const Setting& setting, int ranks, int rounds) {
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

std::vector<CodecPtr> deterministic_codecs() {
  std::vector<CodecPtr> codecs;
  for (const CodecPtr& codec : all_codecs()) {
    const std::string name = codec->describe();
    if (name != "fp32" && name.find("stochastic") == name.npos) codecs.push_back(codec);
  }
  return codecs;
}

TEST(CodedRound, IsItsDefinitionOnGroupsOfAnySize) {
  for (const int ranks : {1, 2, 3, 8}) {
    const Group group = group_of(ranks);
    for (const CodecPtr& codec : deterministic_codecs()) {
      for (const auto& feedback : {std::optional<ErrorFeedback>(), std::optional(ErrorFeedback{.decay = 0.95})}) {
        const Setting setting{codec, feedback};
        const Tensor expected = defined(setting, ranks, 3);
        for (const Tensor& anchor : held(setting, group, 3)) {
          EXPECT_TRUE(same_bits(anchor, expected)) << codec->describe() << " on " << ranks << " ranks";
        }
      }
    }
  }
}

TEST(CodedRound, CountsWeightsAndLeavesOutReplicasOfNone) {
  for (const CodecPtr& codec : {codecs::int8(), codecs::top_k()}) {
    const Setting setting{codec, ErrorFeedback{}, {3, 0, 0.5}};
    const Tensor expected = defined(setting, 3, 4);
    for (const Tensor& anchor : held(setting, group_of(3), 4))
      EXPECT_TRUE(same_bits(anchor, expected)) << codec->describe();
  }
}

TEST(CodedRound, KeepsResidualsInBfloat16) {
  const Setting setting{codecs::e2m1(), ErrorFeedback{.residual = at::kBFloat16}};
  const Tensor expected = defined(setting, 2, 4);
  EXPECT_FALSE(same_bits(expected, defined({codecs::e2m1(), ErrorFeedback{}}, 2, 4)));
  for (const Tensor& anchor : held(setting, group_of(2), 4)) EXPECT_TRUE(same_bits(anchor, expected));
}

TEST(CodedRound, OfDrawsHasTheSameAnchorsOnAllRanks) {
  const Setting setting{codecs::int4(64, Rounding::stochastic), ErrorFeedback{}};
  for (const int ranks : {2, 5}) {
    const Group group = group_of(ranks);
    const auto anchors = held(setting, group, 3);
    for (const Tensor& anchor : anchors) EXPECT_TRUE(same_bits(anchor, anchors[0]));
    EXPECT_TRUE(same_bits(anchors[0], held(setting, group, 3)[0]));
  }
}

/// What rank 0 reports of a round, and what its collectives sent but for the header.
std::pair<int64_t, int64_t> bytes_of_a_round(const CodecPtr& codec, const Group& group) {
  const auto ranks = static_cast<int64_t>(group.size());
  return run_ranks(group, [&](std::shared_ptr<Communicator> comm) {
    const auto tapped = std::make_shared<Tapped>(comm);
    Replica replica(tapped, averaging({.codec = codec}), torch::zeros({numel}));
    tapped->calls.clear();
    replica.step(1);
    int64_t sent = ranks > 1 ? -80 * (ranks - 1) : 0;
    for (const Tapped::Call& call : tapped->calls) {
      sent += call.name == "all_to_all" ? call.numel / ranks * (ranks - 1) : call.numel * (ranks - 1);
    }
    return std::pair(replica.reports.at(0).wire_bytes, sent);
  })[0];
}

TEST(CodedRound, SendsTheBytesItReports) {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    const Group group = group_of(ranks);
    for (const CodecPtr& codec : deterministic_codecs()) {
      const auto [reported, sent] = bytes_of_a_round(codec, group);
      EXPECT_EQ(sent, reported) << codec->describe() << " on " << ranks;
      // Wires, and what makes shards whole blocks and rows begin where any type may: a block and 17 bytes each.
      const bool gathers = codec->reduction() == Reduction::gather;
      const auto wire = static_cast<double>(codec->wire_bytes(numel));
      const double expected = gathers ? wire * (ranks - 1) : 2 * wire * (ranks - 1) / ranks;
      const double slack = (ranks - 1) * (gathers ? 18.0 : 2.0 * (codec->wire_bytes(codec->block()) + 17.0));
      EXPECT_GE(reported, std::floor(expected)) << codec->describe() << " on " << ranks;
      EXPECT_LE(reported, expected + slack) << codec->describe() << " on " << ranks;
    }
  }
}

TEST(CodedRound, SendsInTheEndAllThatTheDeltasWereWithFeedback) {
  for (const CodecPtr& codec : {codecs::int8(), codecs::e3m0(), codecs::top_k(1.0 / 16, 2)}) {
    for (const int ranks : {1, 3}) {
      const auto anchors = run_ranks(ranks, [&](std::shared_ptr<Communicator> comm) {
        Model model;
        DiLoCoOptimizer optimizer(torch::optim::SGD(model.all(), 1.0), comm,
                                  averaging({.codec = codec, .error_feedback = ErrorFeedback{}}));
        for (int round = 0; round < 100; ++round) {
          model.set_gradient(round < 4 ? moved(comm->rank(), round) : torch::zeros({numel}));
          optimizer.step();
        }
        return flat_of(optimizer.anchors());
      });
      Tensor all = torch::zeros({numel});
      for (int rank = 0; rank < ranks; ++rank) {
        for (int round = 0; round < 4; ++round) all -= moved(rank, round) / ranks;
      }
      EXPECT_LT(relative_error(anchors[0], all), 1e-5) << codec->describe() << " on " << ranks;
    }
  }
}

/// A delta of NaN, or beyond float16, on one rank.
TEST(CodedRound, AbortsOnAllRanksWhenADeltaDoesNotFitTheWire) {
  for (const auto& [codec, bad] : {std::pair{codecs::int8(), double(NAN)}, std::pair{codecs::int8(), double(INFINITY)},
                                   std::pair{codecs::fp16(), 1e5}, std::pair{codecs::top_k(1, 8), double(NAN)}}) {
    const auto outcomes = run_ranks(2, [&](std::shared_ptr<Communicator> comm) {
      Replica replica(comm, averaging({.codec = codec, .error_feedback = ErrorFeedback{}}));
      replica.step(1);
      replica.step(comm->rank() == 1 ? bad : 1);
      replica.step(1);
      return replica.outcomes();
    });
    expect_same_outcomes(outcomes);
    ASSERT_EQ(outcomes[0].reports.size(), 3u);
    EXPECT_EQ(outcomes[0].reports[1].outcome, Outcome::aborted);
    EXPECT_TRUE(says(outcomes[0].reports[1].reason, "rank 1 has")) << codec->describe();
    EXPECT_EQ(outcomes[0].reports[2].outcome, Outcome::committed);
    EXPECT_NEAR(outcomes[0].anchor[0].item<double>(), -2, 0.02);
  }
}

TEST(CodedRound, AbortsOnAllRanksWhenTheMeanIsNotFinite) {
  const auto outcomes = run_ranks(2, [&](std::shared_ptr<Communicator> comm) {
    Replica replica(comm, averaging({.codec = codecs::int8(), .weight = [] { return 1e15; }}));
    replica.step(3e30);
    replica.step(1);
    return replica.outcomes();
  });
  expect_same_outcomes(outcomes);
  EXPECT_EQ(outcomes[0].reports[0].reason, "rank 0 could not average the deltas");
  EXPECT_EQ(outcomes[0].reports[1].outcome, Outcome::committed);
}

TEST(CodedRound, ThatAbortsLeavesResidualsAsTheyWere) {
  const auto run = [](bool aborts) {
    return run_ranks(2, [&](std::shared_ptr<Communicator> comm) {
      Model model;
      int round = 0;
      DiLoCoOptions options = averaging({.codec = codecs::int4(), .error_feedback = ErrorFeedback{}});
      options.sync.commit_if = [&](const SyncReport&) { return !aborts || round != 2 || comm->rank() == 0; };
      DiLoCoOptimizer optimizer(torch::optim::SGD(model.all(), 1.0), comm, options);
      for (round = 0; round < 5; ++round) {
        if (round == 2 && !aborts) continue;
        model.set_gradient(moved(comm->rank(), round));
        optimizer.step();
      }
      return flat_of(optimizer.anchors());
    })[0];
  };
  EXPECT_TRUE(same_bits(run(true), run(false)));
}

/// Halves of float32: what a user may write.
class Upper final : public Codec {
 public:
  explicit Upper(Reduction reduction, std::function<void()> before_encode = nullptr,
                 std::function<void()> before_decode = nullptr)
      : reduction_(reduction), before_encode_(before_encode), before_decode_(before_decode) {}
  std::string describe() const override { return "upper"; }
  Reduction reduction() const override { return reduction_; }
  int64_t wire_bytes(int64_t n) const override { return 2 * n; }
  void encode(const Tensor& delta, const Tensor& wire, uint64_t) const override {
    if (before_encode_) before_encode_();
    wire.view({-1, 2}).copy_(delta.view(at::kByte).view({-1, 4}).narrow(1, 2, 2));
  }
  void decode(const Tensor& wire, const Tensor& delta) const override {
    if (before_decode_) before_decode_();
    Tensor bytes = delta.view(at::kByte).view({-1, 4});
    bytes.zero_();
    bytes.narrow(1, 2, 2).copy_(wire.view({-1, 2}));
  }

 private:
  Reduction reduction_;
  std::function<void()> before_encode_, before_decode_;
};

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

/// Anchors, parameters and reports of rank 0 after some rounds with all there is.
std::pair<std::vector<Tensor>, std::vector<SyncReport>> mixed_rounds(const CodecPtr& codec, const Group& group,
                                                                     const ErrorFeedback& feedback) {
  return run_ranks(group, [&](std::shared_ptr<Communicator> comm) {
    std::vector<Tensor> params;
    const std::vector<at::ScalarType> types{at::kFloat, at::kBFloat16, at::kHalf, at::kDouble, at::kFloat};
    for (size_t i = 0; i < types.size(); ++i) params.push_back(parameter(normal({3001}, i + 1, types[i])));
    std::vector<SyncReport> reports;
    DiLoCoOptions options{.sync_every = 2, .sync = {.codec = codec, .error_feedback = feedback}};
    options.streaming = {.fragments = FragmentPlan::strided(2), .delay = 1, .keep_local = 0.25};
    options.sync.on_sync = [&](const SyncReport& report) { reports.push_back(report); };
    DiLoCoOptimizer optimizer(torch::optim::SGD(params, 0.1), comm, options);
    for (int step = 0; step < 8; ++step) {
      for (size_t i = 0; i < params.size(); ++i) {
        params[i].mutable_grad() = normal({3001}, 100 * step + 10 * i + comm->rank(), types[i]);
      }
      optimizer.step();
    }
    optimizer.drain();
    std::vector<Tensor> all = optimizer.anchors();
    for (const Tensor& param : params) all.push_back(param.detach().clone());
    return std::pair(all, reports);
  })[0];
}

TEST(CodedRound, FusedIsToTheBitWhatItIsStageByStage) {
  const Group group = group_of(2);
  for (const CodecPtr& codec : all_codecs()) {
    if (codec->describe() == "fp32") continue;
    for (const at::ScalarType residual : {at::kFloat, at::kBFloat16}) {
      const ErrorFeedback feedback{.decay = 0.9, .residual = residual};
      const auto [fused, reports] = mixed_rounds(codec, group, feedback);
      const auto [staged, expected] = mixed_rounds(std::make_shared<Foreign>(codec), group, feedback);
      EXPECT_TRUE(same_bits(fused, staged)) << codec->describe();
      ASSERT_EQ(reports.size(), expected.size());
      for (size_t i = 0; i < reports.size(); ++i) {
        EXPECT_EQ(reports[i].wire_bytes, expected[i].wire_bytes);
        EXPECT_NEAR(reports[i].delta_norm, expected[i].delta_norm, 1e-9 * expected[i].delta_norm);
        EXPECT_NEAR(reports[i].mean_delta_norm, expected[i].mean_delta_norm, 1e-9 * expected[i].mean_delta_norm);
      }
    }
  }
}

TEST(OwnCodec, TakesTheSameRounds) {
  for (const Reduction reduction : {Reduction::shards, Reduction::gather}) {
    const Setting setting{std::make_shared<Upper>(reduction), ErrorFeedback{}};
    for (const int ranks : {1, 2, 3}) {
      const Tensor expected = defined(setting, ranks, 3);
      for (const Tensor& anchor : held(setting, group_of(ranks), 3)) EXPECT_TRUE(same_bits(anchor, expected));
    }
  }
}

TEST(OwnCodec, ThatThrowsOnOneRankAbortsItsRoundOnAll) {
  for (const Reduction reduction : {Reduction::shards, Reduction::gather}) {
    for (const bool at_encode : {true, false}) {
      const auto outcomes = run_ranks(2, [&](std::shared_ptr<Communicator> comm) {
        bool armed = false;
        const auto fail = [&] {
          if (armed && comm->rank() == 1) throw std::domain_error("the codec's own words");
        };
        const auto codec =
            at_encode ? std::make_shared<Upper>(reduction, fail) : std::make_shared<Upper>(reduction, nullptr, fail);
        Replica replica(comm, averaging({.codec = codec}));
        replica.step(1);
        armed = true;
        if (comm->rank() == 1) {
          EXPECT_TRUE(says(message_of<std::domain_error>([&] { replica.step(1); }), "own words"));
        } else {
          replica.step(1);
          EXPECT_EQ(replica.reports.back().outcome, Outcome::aborted);
          EXPECT_TRUE(says(replica.reports.back().reason, "rank 1"));
        }
        armed = false;
        replica.step(1);
        EXPECT_EQ(replica.reports.back().outcome, Outcome::committed);
        return replica.outcomes();
      });
      EXPECT_TRUE(same_bits(outcomes[0].anchor, outcomes[1].anchor));
      EXPECT_EQ(outcomes[0].anchor[0].item<float>(), -2);
    }
  }
}

TEST(CodedRound, ComesLateAsOthersDo) {
  for (const int delay : {1, 3}) {
    const auto anchors = run_ranks(2, [&](std::shared_ptr<Communicator> comm) {
      Model model;
      DiLoCoOptions options = averaging({.codec = codecs::int8(), .error_feedback = ErrorFeedback{}}, 4);
      options.streaming = {.fragments = FragmentPlan::strided(2), .delay = delay};
      DiLoCoOptimizer optimizer(torch::optim::SGD(model.all(), 1.0), comm, options);
      for (int step = 0; step < 12; ++step) {
        model.set_gradient(moved(comm->rank(), step));
        optimizer.step();
      }
      optimizer.sync();
      return flat_of(optimizer.anchors());
    });
    EXPECT_TRUE(same_bits(anchors[0], anchors[1]));
    EXPECT_GT(anchors[0].abs().max().item<float>(), 1);
  }
}

TEST(CodedRound, LetsFloat64TravelWhole) {
  run_ranks(2, [&](std::shared_ptr<Communicator> comm) {
    const Tensor twice = parameter(torch::zeros({5}, at::kDouble)), single = parameter(torch::zeros({300}));
    DiLoCoOptimizer optimizer(torch::optim::SGD({twice, single}, 1.0), comm,
                              averaging({.codec = codecs::int4(), .error_feedback = ErrorFeedback{}, .weight = [&] {
                                           return comm->rank() + 1.0;
                                         }}));
    for (const Tensor& p : {twice, single}) p.mutable_grad() = torch::full_like(p, 1.0 / 3).detach();
    optimizer.step();
    EXPECT_NEAR(optimizer.anchors()[0][0].item<double>(), -1.0 / 3, 1e-15);
    EXPECT_NEAR(optimizer.anchors()[1][0].item<double>(), -1.0 / 3, 1e-2);
  });
}

TEST(CodedRound, GoesOnBitForBitFromACheckpoint) {
  const auto run = [](bool stops) {
    return run_ranks(2, [&](std::shared_ptr<Communicator> comm) {
      auto model = std::make_unique<Model>();
      const DiLoCoOptions options =
          averaging({.codec = codecs::int4(), .error_feedback = ErrorFeedback{.decay = 0.9}}, 2);
      auto optimizer = std::make_unique<DiLoCoOptimizer>(torch::optim::SGD(model->all(), 1.0), comm, options);
      for (int step = 0; step < 9; ++step) {
        if (stops && step == 5) {
          std::stringstream saved;
          torch::save(*optimizer, saved);
          auto next = std::make_unique<Model>();
          {
            const at::NoGradGuard no_grad;
            next->a.copy_(model->a);
            next->b.copy_(model->b);
          }
          model = std::move(next);
          optimizer = std::make_unique<DiLoCoOptimizer>(torch::optim::SGD(model->all(), 1.0), comm, [&] {
            auto o = options;
            o.sync.start = Start::trust;
            return o;
          }());
          torch::load(*optimizer, saved);
        }
        model->set_gradient(moved(comm->rank(), step));
        optimizer->step();
      }
      return flat_of(optimizer->anchors());
    })[0];
  };
  EXPECT_TRUE(same_bits(run(true), run(false)));
}

/// A replica that grows by a group after the first round, and may be saved and loaded before the next.
TEST(CodedRound, GoesOnBitForBitFromACheckpointOfAFragmentThatHasGrown) {
  const auto run = [](bool stops) {
    return run_ranks(2, [&](std::shared_ptr<Communicator> comm) {
      const DiLoCoOptions options = averaging({.codec = codecs::int4(), .error_feedback = ErrorFeedback{}}, 2);
      const auto make = [&](const Model& model) {
        return std::make_unique<DiLoCoOptimizer>(torch::optim::SGD({model.a}, 1.0), comm, options);
      };
      const auto grow = [](OuterLoopOptimizer& optimizer, const Model& model) {
        optimizer.add_param_group(torch::optim::OptimizerParamGroup({model.b}));
      };
      auto model = std::make_unique<Model>();
      auto optimizer = make(*model);
      const auto step = [&](int number) {
        model->set_gradient(moved(comm->rank(), number));
        optimizer->step();
      };
      step(0);
      step(1);
      grow(*optimizer, *model);
      step(2);
      if (stops) {
        std::stringstream saved;
        torch::save(*optimizer, saved);
        auto next = std::make_unique<Model>();
        optimizer = make(*next);
        grow(*optimizer, *next);
        torch::load(*optimizer, saved);
        const at::NoGradGuard no_grad;
        next->a.copy_(model->a);
        next->b.copy_(model->b);
        model = std::move(next);
      }
      for (int number = 3; number < 8; ++number) step(number);
      return flat_of(optimizer->anchors());
    })[0];
  };
  EXPECT_TRUE(same_bits(run(true), run(false)));
}

TEST(CodedRound, OfOtherCodecsOrFeedbackIsRefusedByAll) {
  const auto refused = [](const SyncOptions& first, const SyncOptions& second, const std::string& words) {
    run_ranks(2, [&](std::shared_ptr<Communicator> comm) {
      EXPECT_TRUE(says(
          message_of<ConsistencyError>([&] { Replica(comm, averaging(comm->rank() == 0 ? first : second)); }), words));
    });
  };
  refused({.codec = codecs::int8()}, {.codec = codecs::int8(128)},
          "codec int8(block 256), rank 1 has codec int8(block 128)");
  refused({.codec = codecs::int8()}, {.codec = codecs::int8(), .error_feedback = ErrorFeedback{}},
          "error feedback none, rank 1 has error feedback decay 1");
}

TEST(CodedRound, TakesRulesThatKernelsDoNotKnow) {
  struct Half final : OuterRule {
    int slots() const override { return 0; }
    void step(OuterState& state, const Tensor& mean_delta) const override { state.anchor.sub_(mean_delta, 0.5); }
    std::string describe() const override { return "Half"; }
  };
  const auto anchors = run_ranks(2, [&](std::shared_ptr<Communicator> comm) {
    Model model;
    OuterLoopOptimizer optimizer(std::make_unique<torch::optim::SGD>(model.all(), 1.0), comm, std::make_shared<Half>(),
                                 1, {}, {.codec = codecs::int8()});
    model.set_gradient(moved(comm->rank(), 0));
    optimizer.step();
    return flat_of(optimizer.anchors());
  });
  const Tensor whole = defined({codecs::int8()}, 2, 1);
  for (const Tensor& anchor : anchors) EXPECT_TRUE(torch::equal(anchor, whole / 2));
}

TEST(Residuals, KeepTheirPartOfTheMeanWhenTheGroupChanges) {
  constexpr int before = 3;
  std::vector<codec::Residuals> all;
  Tensor mean = torch::zeros({12});
  for (int rank = 0; rank < before; ++rank) {
    all.push_back({eighths({12}, rank + 1), eighths({4}, rank + 11), 4 * rank, before, rank});
    mean += all[rank].own / before;
    mean.narrow(0, 4 * rank, 4) += all[rank].owner;
  }
  for (const int after : {3, 6}) {
    Tensor now = torch::zeros({12});
    for (int rank = 0; rank < before; ++rank) {
      codec::Residuals residuals = all[rank];
      residuals.follow(after, (rank + 1) % after);
      EXPECT_FALSE(residuals.owner.defined());
      now += residuals.own / after;
    }
    EXPECT_TRUE(torch::allclose(now, mean, 1e-6, 1e-6));
  }
  codec::Residuals same = all[1];
  same.follow(before, 1);
  EXPECT_TRUE(same_bits(same.own, all[1].own) && same_bits(same.owner, all[1].owner));
}

TEST(CodedRound, SendsWhatWasOwedWhenTheGroupHasShrunk) {
  // What three replicas lost of one round arrives when two of them go on: of the third, nobody knows.
  const auto three = gloo_group(3, std::chrono::seconds(60), 0), two = gloo_group(2, std::chrono::seconds(60), 0);
  const auto anchors = run_ranks(three, [&](std::shared_ptr<Communicator> comm) {
    Model model;
    DiLoCoOptimizer optimizer(torch::optim::SGD(model.all(), 1.0), comm,
                              averaging({.codec = codecs::int4(), .error_feedback = ErrorFeedback{}}));
    model.set_gradient(comm->rank() == 2 ? torch::zeros({numel}) : moved(comm->rank(), 0));
    optimizer.step();
    if (comm->rank() == 2) return Tensor();
    optimizer.reconnect(two[comm->rank()]);
    for (int round = 0; round < 60; ++round) {
      model.set_gradient(torch::zeros({numel}));
      optimizer.step();
    }
    return flat_of(optimizer.anchors());
  });
  EXPECT_TRUE(same_bits(anchors[0], anchors[1]));
  const Tensor all = -(moved(0, 0) + moved(1, 0)) / 3, owned_by_the_third = all.narrow(0, 2 * 1792, numel - 2 * 1792);
  EXPECT_LT(relative_error(anchors[0].narrow(0, 0, 2 * 1792), all.narrow(0, 0, 2 * 1792)), 1e-5);
  EXPECT_GT(relative_error(anchors[0].narrow(0, 2 * 1792, numel - 2 * 1792), owned_by_the_third), 1e-3);
}

TEST(MeanAcross, ByACodecIsThatOfARound) {
  for (const CodecPtr& codec : deterministic_codecs()) {
    const auto means = run_ranks(3, [&](std::shared_ptr<Communicator> comm) {
      Tensor delta = moved(comm->rank(), 0);
      mean_across(*comm, *codec, delta).wait();
      return delta;
    });
    const Tensor expected = -defined({codec}, 3, 1);
    for (const Tensor& mean : means) EXPECT_TRUE(torch::equal(mean, expected)) << codec->describe();
  }
}

/// Draws that two ranks, or a wire and the mean, had in common would not average out.
TEST(MeanAcross, OfStochasticWiresHasDrawsOfItsOwnOnEachRank) {
  std::mutex mutex;
  std::set<uint64_t> keys;
  struct Listening final : Foreign {
    using Foreign::Foreign;
    void encode(const Tensor& delta, const Tensor& wire, uint64_t key) const override {
      heard(key);
      Foreign::encode(delta, wire, key);
    }
    std::function<void(uint64_t)> heard;
  };
  Listening codec(codecs::int8(256, Rounding::stochastic));
  codec.heard = [&](uint64_t key) {
    const std::lock_guard lock(mutex);
    EXPECT_TRUE(keys.insert(key).second);
  };
  run_ranks(3, [&](std::shared_ptr<Communicator> comm) {
    for (const uint64_t key : {0, 1}) mean_across(*comm, codec, moved(0, 0), key).wait();
  });
  EXPECT_EQ(keys.size(), 2u * 3 * (3 + 1));  // three shards and a mean
}

TEST(MeanAcross, ByACodecThrowsOnAllRanksWhenOneIsNotFinite) {
  for (const CodecPtr& codec : {codecs::int8(), codecs::bf16(), codecs::top_k()}) {
    run_ranks(3, [&](std::shared_ptr<Communicator> comm) {
      Tensor delta = moved(comm->rank(), 0);
      if (comm->rank() == 1) delta[4000] = NAN;
      EXPECT_THROW(mean_across(*comm, *codec, delta).wait(), c10::Error) << codec->describe();
      Tensor next = torch::ones({numel});
      mean_across(*comm, *codec, next).wait();  // the group goes on
    });
  }
}

}  // namespace
}  // namespace outerloop::testing::coded
