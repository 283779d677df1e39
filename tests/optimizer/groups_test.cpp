#include <outerloop/outerloop.hpp>

#include "optimizer/models.hpp"
#include "optimizer/thrown.hpp"
#include "support/faults.hpp"
#include "support/ranks.hpp"

/// The wrapper's parameter groups are the live ones: whatever their options are reaches the inner optimizer.

namespace outerloop::testing {
namespace {

using torch::optim::OptimizerParamGroup;
using torch::optim::SGD;

template <class Options>
const Options& options_of(const Optimizer& optimizer, size_t group) {
  return static_cast<const Options&>(optimizer.param_groups()[group].options());
}

/// One group for each of `wanted`, under `defaults` that later libtorch versions merge into them.
template <class Kind, class Options>
void expect_options_survive(const Options& defaults, const std::vector<Options>& wanted) {
  std::vector<OptimizerParamGroup> groups;
  for (size_t i = 0; i < wanted.size(); ++i) groups.emplace_back(std::vector<Tensor>{leaf(torch::ones({2}))});
  auto inner = std::make_unique<Kind>(groups, defaults);
  for (size_t i = 0; i < wanted.size(); ++i) inner->param_groups()[i].set_options(std::make_unique<Options>(wanted[i]));

  DiLoCoOptimizer optimizer(std::move(inner), connect_alone());
  ASSERT_EQ(optimizer.param_groups().size(), wanted.size());
  optimizer.step([] { return torch::zeros({}); });
  for (size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_TRUE(options_of<Options>(optimizer, i) == wanted[i]) << "wrapper, group " << i;
    EXPECT_TRUE(options_of<Options>(optimizer.inner(), i) == wanted[i]) << "inner, group " << i;
  }
}

TEST(Groups, OptionsEqualToConstructorDefaultsSurviveConstruction) {
  using namespace torch::optim;
  expect_options_survive<SGD, SGDOptions>(
      SGDOptions(0.5).momentum(0.9).nesterov(true),
      {SGDOptions(1e-3), SGDOptions(0.2).momentum(0), SGDOptions(0.3).dampening(0.1)});
  expect_options_survive<Adam, AdamOptions>(AdamOptions(0.5).weight_decay(0.1).amsgrad(true).betas({0.5, 0.5}),
                                            {AdamOptions(1e-3), AdamOptions(0.2).weight_decay(0).eps(1e-4)});
  expect_options_survive<AdamW, AdamWOptions>(AdamWOptions(0.5).weight_decay(0.1).amsgrad(true),
                                              {AdamWOptions(1e-3), AdamWOptions(0.2).betas({0.8, 0.99})});
  expect_options_survive<RMSprop, RMSpropOptions>(RMSpropOptions(0.5).centered(true).momentum(0.9).alpha(0.5),
                                                  {RMSpropOptions(1e-2), RMSpropOptions(0.2).momentum(0.1)});
  expect_options_survive<Adagrad, AdagradOptions>(AdagradOptions(0.5).lr_decay(0.1).weight_decay(0.1),
                                                  {AdagradOptions(1e-2), AdagradOptions(0.2).lr_decay(0)});
  expect_options_survive<LBFGS, LBFGSOptions>(LBFGSOptions(0.5).max_iter(3).history_size(7),
                                              {LBFGSOptions(1).max_iter(20)});
}

/// An optimizer and an options type that libtorch does not know.
struct ScaleOptions : torch::optim::OptimizerCloneableOptions<ScaleOptions> {
  explicit ScaleOptions(double rate, double factor = 1) : rate(rate), factor(factor) {}
  double get_lr() const override { return rate; }
  void set_lr(const double lr) override { rate = lr; }
  double rate;
  double factor;
};
struct Scale : Optimizer {
  explicit Scale(const std::vector<OptimizerParamGroup>& groups)
      : Optimizer(groups, std::make_unique<ScaleOptions>(0.25)) {}
  Tensor step(LossClosure = nullptr) override {
    at::NoGradGuard no_grad;
    for (auto& group : param_groups()) {
      const auto& options = static_cast<ScaleOptions&>(group.options());
      for (auto& param : group.params()) param.sub_(param.grad(), options.rate * options.factor);
    }
    return {};
  }
};

TEST(Groups, OptionsOfACustomTypeSurviveAndReachTheInner) {
  const auto a = leaf(torch::ones({2})), b = leaf(torch::ones({2}));
  auto inner =
      std::make_unique<Scale>(std::vector<OptimizerParamGroup>{OptimizerParamGroup({a}), OptimizerParamGroup({b})});
  inner->param_groups()[1].set_options(std::make_unique<ScaleOptions>(0.5, 3));
  LocalSGDOptimizer optimizer(std::move(inner), connect_alone());
  EXPECT_EQ(options_of<ScaleOptions>(optimizer, 1).factor, 3);
  optimizer.param_groups()[0].options().set_lr(0.125);
  step_with_grad(optimizer, {a, b}, 1);
  EXPECT_TRUE(same_bits(a, torch::full({2}, 0.875F)));
  EXPECT_TRUE(same_bits(b, torch::full({2}, -0.5F)));
}

TEST(Groups, DefaultsOfTheWrapperChangeNoGroupAsWithTheBareOptimizer) {
  const auto a = leaf(torch::ones({2})), b = leaf(torch::ones({2}));
  LocalSGDOptimizer optimizer(SGD({a}, 0.5), connect_alone());
  optimizer.defaults().set_lr(64);
  step_with_grad(optimizer, {a}, 1);
  EXPECT_TRUE(same_bits(a, torch::full({2}, 0.5F)));
  // A group added later starts from them, as it does with the bare optimizer.
  optimizer.add_param_group(OptimizerParamGroup({b}));
  EXPECT_EQ(optimizer.param_groups()[1].options().get_lr(), 64);
}

TEST(Groups, DifferentOptionsPerGroupGiveTheTrajectoryOfTheBareOptimizer) {
  const Mlp wrapped, bare;
  const auto make = [](const Mlp& model) {
    using torch::optim::AdamWOptions;
    return torch::optim::AdamW(
        {OptimizerParamGroup({model.w1, model.w2},
                             std::make_unique<AdamWOptions>(AdamWOptions(0.02).weight_decay(0.3))),
         OptimizerParamGroup({}), OptimizerParamGroup({model.b1, model.b2}, std::make_unique<AdamWOptions>(0.05))},
        AdamWOptions(0.01).weight_decay(0.0));
  };
  LocalSGDOptimizer optimizer(make(wrapped), connect_alone(), {.sync_every = 100});
  auto reference = make(bare);
  for (int64_t step = 1; step <= 4; ++step) {
    closure_step(optimizer, wrapped, step);
    closure_step(reference, bare, step);
    EXPECT_TRUE(same_bits(wrapped.params, bare.params)) << "at step " << step;
  }
}

TEST(AddParamGroup, AfterConstructionGivesTheTrajectoryOfTheBareOptimizer) {
  const Mlp wrapped, bare;
  const auto make = [](const Mlp& model) {
    return SGD({model.w1, model.b1}, torch::optim::SGDOptions(0.1).momentum(0.9));
  };
  DiLoCoOptimizer optimizer(make(wrapped), connect_alone(), {.sync_every = 100});
  auto reference = make(bare);
  const auto grow = [](Optimizer& with, const Mlp& model) {
    with.add_param_group(OptimizerParamGroup({model.w2, model.b2}, std::make_unique<torch::optim::SGDOptions>(
                                                                       torch::optim::SGDOptions(0.01).nesterov(true))));
  };
  for (int64_t step = 1; step <= 6; ++step) {
    if (step == 3) grow(optimizer, wrapped);
    if (step == 3) grow(reference, bare);
    closure_step(optimizer, wrapped, step);
    closure_step(reference, bare, step);
    EXPECT_TRUE(same_bits(wrapped.params, bare.params)) << "at step " << step;
  }
}

TEST(AddParamGroup, TakesPartInTheNextRoundOnAllReplicas) {
  run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    const auto a = leaf(eighths({3}, 1)), b = leaf(eighths({2, 2}, 2)), c = leaf(torch::ones({2}).to(at::kDouble));
    LocalSGDOptimizer optimizer(SGD({a}, 0.5), comm, {.sync_every = 4});
    const double grad = comm->rank() == 0 ? 1 : 2;
    step_with_grad(optimizer, {a}, grad);
    optimizer.add_param_group(OptimizerParamGroup({b, c}));
    for (int step = 2; step <= 8; ++step) step_with_grad(optimizer, {a, b, c}, grad);
    EXPECT_TRUE(same_bits(a, eighths({3}, 1) - 8 * 0.75));
    EXPECT_TRUE(same_bits(b, eighths({2, 2}, 2) - 7 * 0.75));
    EXPECT_TRUE(same_bits(c, torch::full({2}, 1 - 7 * 0.75, at::kDouble)));
    EXPECT_TRUE(same_bits(optimizer.anchors(), copies({a, b, c})));
  });
}

TEST(AddParamGroup, OnOneReplicaOnlyThrowsOnEveryReplicaAtTheNextRound) {
  run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    const auto a = leaf(eighths({3}, 0)), b = leaf(eighths({2}, 0));
    LocalSGDOptimizer optimizer(SGD({a}, 0.5), comm, {.sync_every = 2});
    if (comm->rank() == 1) optimizer.add_param_group(OptimizerParamGroup({b}));
    const Thrown thrown = thrown_by([&] {
      for (int step = 1; step <= 2; ++step) step_with_grad(optimizer, {a}, 1);
    });
    EXPECT_TRUE(is(thrown, "ConsistencyError"));
  });
}

/// libtorch fails with an internal assertion here.
TEST(AddParamGroup, OnAdagradAndLbfgsSaysThatTheyCannotTakeOne) {
  const auto a = leaf(eighths({3}, 0)), b = leaf(eighths({2}, 0));
  const auto grow = [&](auto inner) {
    LocalSGDOptimizer optimizer(std::move(inner), connect_alone());
    optimizer.add_param_group(OptimizerParamGroup({b}));
    return thrown_by([&] { optimizer.step([] { return torch::zeros({}); }); });
  };
  EXPECT_TRUE(is(grow(torch::optim::Adagrad({a}, 0.5)), "c10::Error", {"add_param_group", "Adagrad"}));
  EXPECT_TRUE(is(grow(torch::optim::LBFGS({a}, 0.5)), "c10::Error", {"add_param_group", "LBFGS"}));
}

TEST(AddParamGroup, ThatCannotBeTrainedOnOneReplicaMakesTheOthersThrowWithTheReason) {
  const auto thrown = run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    const auto a = leaf(eighths({3}, 0));
    LocalSGDOptimizer optimizer(SGD({a}, 0.5), comm);
    step_with_grad(optimizer, {a}, 1);
    optimizer.add_param_group(
        OptimizerParamGroup({comm->rank() == 0 ? leaf(eighths({2}, 0)) : torch::ones({2}, at::kLong)}));
    return thrown_by([&] { step_with_grad(optimizer, {a}, 1); });
  });
  EXPECT_TRUE(is(thrown[0], "ConsistencyError", {"rank 1", "parameter 1", "Long"}));
  EXPECT_TRUE(is(thrown[1], "c10::Error", {"parameter 1", "Long"}));
}

TEST(AddParamGroup, ThatWasRefusedCanBeTakenBack) {
  run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    const auto a = leaf(eighths({3}, 0));
    LocalSGDOptimizer optimizer(SGD({a}, 0.5), comm, {.sync_every = 2});
    step_with_grad(optimizer, {a}, 1);
    optimizer.add_param_group(
        OptimizerParamGroup({comm->rank() == 0 ? leaf(eighths({2}, 0)) : torch::ones({2}, at::kLong)}));
    EXPECT_NE(thrown_by([&] { step_with_grad(optimizer, {a}, 1); }).kind, "");
    optimizer.param_groups().pop_back();
    for (int step = 0; step < 3; ++step) step_with_grad(optimizer, {a}, 1);
    EXPECT_EQ(optimizer.rounds(), 2);
    EXPECT_TRUE(same_bits(a, eighths({3}, 0) - 4 * 0.5));
  });
}

TEST(AddParamGroup, ThatMeetsABrokenGroupGoesOnWithTheNextOne) {
  const auto second = gloo_group(2);
  run_ranks(2, [&](std::shared_ptr<Communicator> comm) {
    const auto a = leaf(eighths({3}, 0)), b = leaf(eighths({2}, 0));
    bool broken = false;
    const auto tapped = std::make_shared<Tapped>(comm, [&](const Tapped::Call&) {
      if (broken) throw CommError("pulled the plug");
    });
    LocalSGDOptimizer optimizer(SGD({a}, 0.5), tapped,
                                {.sync_every = 2, .sync = {.on_comm_error = [&] { return second[comm->rank()]; }}});
    broken = true;
    optimizer.add_param_group(OptimizerParamGroup({b}));
    for (int step = 0; step < 2; ++step) step_with_grad(optimizer, {a, b}, 1);
    EXPECT_EQ(optimizer.rounds(), 1);
    EXPECT_TRUE(same_bits(b, eighths({2}, 0) - 2 * 0.5));
  });
}

/// One replica does not hear that a collective of the joining has succeeded; the other goes on to the next. Then they
/// train on, from the step of the one that came further.
void joins_although_a_reply_is_lost(int collective, int loser) {
  const auto first = gloo_group(2, std::chrono::milliseconds(500)), second = gloo_group(2);
  run_ranks(first, [&](std::shared_ptr<Communicator> comm) {
    const auto a = leaf(eighths({3}, 0)), b = leaf(eighths({2}, comm->rank()));
    int collectives = 0;
    bool joining = false;
    const auto tapped = std::make_shared<Tapped>(comm, nullptr, [&](const Tapped::Call&) {
      if (joining && ++collectives == collective && comm->rank() == loser) throw CommError("the reply was lost");
    });
    LocalSGDOptimizer optimizer(SGD({a}, 0.5), tapped,
                                {.sync_every = 2, .sync = {.on_comm_error = [&] { return second[comm->rank()]; }}});
    for (int step = 0; step < 2; ++step) step_with_grad(optimizer, {a}, 1);
    joining = true;
    optimizer.add_param_group(OptimizerParamGroup({b}));
    while (optimizer.local_steps() < 8) step_with_grad(optimizer, {a, b}, 1);
    const Tensor rows = torch::empty({2, 5}), mine = torch::cat({a.detach(), b.detach()});
    second[comm->rank()]->all_gather(rows, mine).wait();
    EXPECT_TRUE(torch::equal(rows[0], rows[1])) << rows;
    // The one that was behind has thrown its steps away; of two steps in a round at least the half counts.
    EXPECT_GE(b[0].item<double>(), eighths({2}, 0)[0].item<double>() - 6 * 0.5);
    EXPECT_LE(b[0].item<double>(), eighths({2}, 0)[0].item<double>() - 4 * 0.5);
    EXPECT_GE(optimizer.rounds(), 3);
  });
}

TEST(AddParamGroup, GoesOnAlthoughTheReplyToTheHeaderWasLost) {
  for (const int loser : {0, 1}) joins_although_a_reply_is_lost(1, loser);
}
TEST(AddParamGroup, GoesOnAlthoughTheReplyWithTheParametersWasLost) {
  for (const int loser : {0, 1}) joins_although_a_reply_is_lost(2, loser);
}
TEST(AddParamGroup, GoesOnAlthoughTheReplyWithTheAnchorWasLost) {
  for (const int loser : {0, 1}) joins_although_a_reply_is_lost(3, loser);
}

TEST(AddParamGroup, RefusesAParameterThatIsThereAlready) {
  const auto a = leaf(eighths({3}, 0));
  LocalSGDOptimizer optimizer(SGD({a}, 0.5), connect_alone());
  const Thrown thrown = thrown_by([&] {
    optimizer.add_param_group(OptimizerParamGroup({a}));
    optimizer.step();
  });
  EXPECT_TRUE(is(thrown, "c10::Error", {"parameter 0", "parameter 1"}));
}

}  // namespace
}  // namespace outerloop::testing
