#include <torch/nn/modules/linear.h>
#include <outerloop/outerloop.hpp>

#include "optimizer/models.hpp"
#include "optimizer/thrown.hpp"
#include "support/faults.hpp"
#include "support/ranks.hpp"

/// Parameters as models have them: frozen, without gradients, empty, strided, of mixed types, moved in memory.

namespace outerloop::testing {
namespace {

using torch::optim::SGD;

/// Ranks 0 and 1 have gradients 1 and 2, so that with lr 1/2 one step lowers the mean by 3/4.
double grad_of(const std::shared_ptr<Communicator>& comm) { return comm->rank() + 1; }

TEST(Parameters, UndefinedGradientsEmptyGroupsAndEmptyTensorsKeepReplicasAligned) {
  run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    const auto a = leaf(eighths({5}, 0)), empty = leaf(torch::empty({0, 3})), scalar = leaf(eighths({}, 2)),
               unused = leaf(eighths({2}, 3)), empty_bucket = leaf(torch::empty({0}, at::kDouble));
    using torch::optim::OptimizerParamGroup;
    LocalSGDOptimizer optimizer(SGD({OptimizerParamGroup({a, empty}), OptimizerParamGroup({}),
                                     OptimizerParamGroup({scalar, unused, empty_bucket})},
                                    torch::optim::SGDOptions(0.5)),
                                comm, {.sync_every = 2});
    for (int step = 1; step <= 4; ++step) {
      if (comm->rank() == 1) unused.mutable_grad() = torch::ones({2});  // rank 0 never has a gradient for it
      step_with_grad(optimizer, {a, empty, scalar}, grad_of(comm));
    }
    EXPECT_EQ(optimizer.rounds(), 2);
    EXPECT_TRUE(same_bits(a, eighths({5}, 0) - 4 * 0.75));
    EXPECT_TRUE(same_bits(scalar, eighths({}, 2) - 4 * 0.75));
    EXPECT_TRUE(same_bits(unused, eighths({2}, 3) - 4 * 0.25));
    EXPECT_EQ(empty.sizes(), at::IntArrayRef({0, 3}));
  });
}

TEST(Parameters, StridedOnesTakePartInRoundsElementByElement) {
  run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    const auto make = [] {
      return std::vector<Tensor>{
          leaf(eighths({3, 5}, 1).t()),
          leaf(eighths({2, 3, 4, 5}, 2).contiguous(at::MemoryFormat::ChannelsLast)),
          leaf(eighths({7, 4}, 3).slice(1, 1, 4, 2)),
          leaf(eighths({40}, 4).slice(0, 3, 40, 3)),
      };
    };
    const auto params = make();
    const auto start = copies(make());
    for (const Tensor& param : params) ASSERT_FALSE(param.is_contiguous());
    LocalSGDOptimizer optimizer(SGD(params, 0.5), comm, {.sync_every = 2});
    for (int step = 1; step <= 2; ++step) {
      for (const Tensor& param : params) param.mutable_grad() = param.detach() * grad_of(comm);
      optimizer.step();
    }
    // p <- p / 2 twice on rank 0, p <- 0 on rank 1
    for (size_t i = 0; i < params.size(); ++i) EXPECT_TRUE(same_bits(params[i], start[i] / 8)) << "parameter " << i;
    EXPECT_TRUE(same_bits(optimizer.anchors(), copies(params)));
  });
}

TEST(Parameters, Float64Float32Bfloat16AndFloat16MixInOneModel) {
  run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    std::vector<Tensor> params;
    for (const auto dtype : {at::kHalf, at::kDouble, at::kFloat, at::kBFloat16, at::kDouble, at::kHalf}) {
      params.push_back(leaf(eighths({3, 2}, static_cast<int64_t>(params.size())).to(dtype)));
    }
    // A difference that float32 cannot hold shows that float64 stays float64 on the wire and in the anchor.
    params.push_back(leaf(torch::full({2}, 1 + std::ldexp(1.0, -40), at::kDouble)));
    const auto start = copies(params);
    LocalSGDOptimizer optimizer(SGD(params, 0.5), comm, {.sync_every = 2});
    for (int step = 1; step <= 4; ++step) step_with_grad(optimizer, params, grad_of(comm));
    for (size_t i = 0; i < params.size(); ++i) EXPECT_TRUE(same_bits(params[i], start[i] - 3)) << "parameter " << i;
    const auto anchors = optimizer.anchors();
    ASSERT_EQ(anchors.size(), params.size());
    for (size_t i = 0; i < params.size(); ++i) {
      const auto expected = params[i].scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
      EXPECT_TRUE(same_bits(anchors[i], (start[i] - 3).to(expected))) << "anchor " << i;
    }
  });
}

class Bfloat16 : public ::testing::TestWithParam<at::ScalarType> {};
INSTANTIATE_TEST_SUITE_P(AndFloat16, Bfloat16, ::testing::Values(at::kBFloat16, at::kHalf),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST_P(Bfloat16, StepsWithoutMovementLeaveTheAnchorBitIdentical) {
  run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    const auto param = leaf(eighths({33}, 0).to(GetParam()));
    DiLoCoOptimizer optimizer(SGD({param}, 0.5), comm, {.sync_every = 3, .outer_lr = 0.7, .outer_momentum = 0.0});
    for (int step = 1; step <= 3; ++step) step_with_grad(optimizer, {param}, grad_of(comm));
    const auto anchors = optimizer.anchors();
    const Tensor rounded = anchors[0].to(GetParam());
    ASSERT_FALSE(same_bits(anchors[0], rounded.to(at::kFloat)));  // lies between representable values
    EXPECT_TRUE(same_bits(param, rounded));
    optimizer.param_groups()[0].options().set_lr(0);
    for (int step = 4; step <= 9; ++step) step_with_grad(optimizer, {param}, grad_of(comm));
    EXPECT_EQ(optimizer.rounds(), 3);
    EXPECT_TRUE(same_bits(optimizer.anchors(), anchors));
    EXPECT_TRUE(same_bits(param, rounded));
  });
}

TEST(Frozen, TakesNoPartInRounds) {
  run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    const auto frozen = torch::zeros({4}), a = leaf(eighths({3}, 0));
    const auto tapped = std::make_shared<Tapped>(comm);
    LocalSGDOptimizer optimizer(SGD({frozen, a}, 0.5), tapped, {.sync_every = 1});
    frozen.fill_(1 + comm->rank());
    step_with_grad(optimizer, {a}, grad_of(comm));
    EXPECT_TRUE(same_bits(frozen, torch::full({4}, 1 + comm->rank(), at::kFloat)));
    EXPECT_TRUE(same_bits(optimizer.anchors(), copies({a})));
    EXPECT_EQ(tapped->calls.back().numel, 3);
  });
}

TEST(Frozen, LaterLeavesAtTheNextRoundAndThawedJoinsAtTheNext) {
  run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    const auto a = leaf(eighths({3}, 0)), b = leaf(eighths({4}, 1));
    LocalSGDOptimizer optimizer(SGD({a, b}, 0.5), comm, {.sync_every = 2});
    const auto train = [&](int steps, const std::vector<Tensor>& params) {
      for (int step = 0; step < steps; ++step) step_with_grad(optimizer, params, grad_of(comm));
    };
    train(2, {a, b});
    b.set_requires_grad(false);
    b.mutable_grad() = Tensor();
    const Tensor at_freeze = copies({b})[0];
    train(2, {a});
    EXPECT_TRUE(same_bits(optimizer.anchors(), copies({a})));
    EXPECT_TRUE(same_bits(b, at_freeze));
    EXPECT_TRUE(same_bits(a, eighths({3}, 0) - 4 * 0.75));

    b.set_requires_grad(true);
    train(2, {a, b});
    EXPECT_EQ(optimizer.anchors().size(), 2);
    train(2, {a, b});
    EXPECT_TRUE(same_bits(optimizer.anchors(), copies({a, b})));
    EXPECT_TRUE(same_bits(a, eighths({3}, 0) - 8 * 0.75));
    EXPECT_TRUE(same_bits(b, eighths({4}, 1) - 6 * 0.75));
  });
}

TEST(Frozen, ThawingIsNoMismatchOfAnchors) {
  run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    const auto a = leaf(eighths({3}, 0)), b = eighths({4}, 1);
    std::string reasons;
    LocalSGDOptimizer optimizer(
        SGD({a, b}, 0.5), comm,
        {.sync_every = 2, .sync = {.on_mismatch = OnMismatch::fail, .on_sync = [&](const SyncReport& report) {
                                     reasons += report.reason;
                                   }}});
    b.set_requires_grad(true);
    for (int step = 1; step <= 2; ++step) step_with_grad(optimizer, {a, b}, grad_of(comm));
    EXPECT_TRUE(same_bits(b, eighths({4}, 1) - 2 * 0.75));
    EXPECT_EQ(reasons, "");
  });
}

TEST(Frozen, OnOneReplicaOnlyThrowsOnEveryReplica) {
  run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    const auto a = leaf(eighths({3}, 0)), b = leaf(eighths({4}, 1));
    LocalSGDOptimizer optimizer(SGD({a, b}, 0.5), comm, {.sync_every = 2});
    if (comm->rank() == 1) b.set_requires_grad(false);
    const Thrown thrown = thrown_by([&] {
      for (int step = 1; step <= 2; ++step) step_with_grad(optimizer, {a}, 1);
    });
    EXPECT_TRUE(is(thrown, "ConsistencyError"));
  });
}

TEST(Storage, MovedAfterConstructionIsFollowed) {
  run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    const auto a = leaf(eighths({300}, 0)), b = leaf(eighths({4, 4}, 1));
    LocalSGDOptimizer optimizer(SGD({a, b}, 0.5), comm, {.sync_every = 2});
    for (int step = 1; step <= 6; ++step) {
      const void* before = a.const_data_ptr();
      a.set_data(a.detach().clone());               // as Module::to does
      b.set_data(b.detach().t().contiguous().t());  // and with other strides
      ASSERT_NE(a.const_data_ptr(), before);
      step_with_grad(optimizer, {a, b}, grad_of(comm));
    }
    EXPECT_TRUE(same_bits(a, eighths({300}, 0) - 6 * 0.75));
    EXPECT_TRUE(same_bits(b, eighths({4, 4}, 1) - 6 * 0.75));
  });
}

TEST(Storage, ModuleLoadedAfterConstructionIsFollowed) {
  const auto save = [](const torch::nn::Linear& module) {
    std::stringstream stream;
    torch::save(module, stream);
    return stream;
  };
  torch::nn::Linear trained(3, 2);
  auto file = save(trained);
  torch::nn::Linear module(3, 2);
  LocalSGDOptimizer optimizer(SGD(module->parameters(), 0.5), connect_alone(), {.sync_every = 1});
  torch::load(module, file);
  for (const auto& param : module->parameters()) param.mutable_grad() = torch::zeros_like(param);
  optimizer.step();
  // The round's delta is anchor - loaded, so Local SGD's new anchor is what was loaded, up to one rounding each way.
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(torch::allclose(module->parameters()[i], trained->parameters()[i], 0, 1e-6));
  }
}

TEST(Storage, ChangedTypeIsAClearErrorThereAndAbortsTheRoundElsewhere) {
  run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    const auto frozen = eighths({2}, 0), a = leaf(eighths({3}, 0)), b = leaf(eighths({4}, 1));
    SyncReport last;
    LocalSGDOptimizer optimizer(
        SGD({frozen, a, b}, 0.5), comm,
        {.sync_every = 1, .sync = {.names = {"frozen", "a", "b"}, .on_sync = [&](const SyncReport& r) { last = r; }}});
    if (comm->rank() == 1) b.set_data(b.detach().to(at::kDouble));
    const Thrown thrown = thrown_by([&] { step_with_grad(optimizer, {a, b}, 1); });
    EXPECT_EQ(optimizer.rounds(), 0);
    if (comm->rank() == 1) {
      EXPECT_TRUE(is(thrown, "c10::Error", {"parameter 2 'b'", "Float", "Double"}));
    } else {
      EXPECT_TRUE(is(thrown, "")) << "the round aborts here, and training goes on";
      EXPECT_EQ(last.outcome, Outcome::aborted);
      EXPECT_NE(last.reason.find("rank 1 failed: parameter 2 'b'"), std::string::npos) << last.reason;
    }
  });
}

TEST(WithoutGrad, NamesParametersThatTakeNoPartInTraining) {
  std::vector<std::vector<int64_t>> reports;
  const auto a = leaf(eighths({3}, 0)), frozen = eighths({2}, 0), forgotten = leaf(eighths({4}, 1));
  LocalSGDOptimizer optimizer(SGD({a, frozen, forgotten}, 0.5), connect_alone(),
                              {.sync_every = 2, .sync = {.on_sync = [&](const SyncReport& report) {
                                                  reports.push_back(report.without_grad);
                                                }}});
  for (int step = 1; step <= 2; ++step) step_with_grad(optimizer, {a}, 1);
  for (int step = 3; step <= 4; ++step) step_with_grad(optimizer, {a, forgotten}, 1);
  EXPECT_EQ(reports, (std::vector<std::vector<int64_t>>{{2}, {}}));
}

TEST(Autograd, BackwardThroughAGraphRecordedBeforeARoundThrows) {
  const auto a = leaf(eighths({3}, 0)), strided = leaf(eighths({3, 2}, 0).t());
  LocalSGDOptimizer optimizer(SGD({a, strided}, 0.5), connect_alone());
  for (const auto& param : {a, strided}) {
    const Tensor loss = param.square().sum();  // saves the parameter for backward
    optimizer.sync();
    EXPECT_TRUE(is(thrown_by([&] { loss.backward(); }), "c10::Error", {"modified by an inplace operation"}));
  }
}

}  // namespace
}  // namespace outerloop::testing
