#include <gtest/gtest.h>

#include "round/coded.hpp"
#include "support/faults.hpp"

// Rounds by codec: against their definition, stage by stage, and byte by byte.

namespace outerloop::testing::coded {
namespace {

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

}  // namespace
}  // namespace outerloop::testing::coded
