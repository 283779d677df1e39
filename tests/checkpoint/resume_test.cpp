#include <outerloop/outerloop.hpp>

#include <filesystem>
#include <fstream>

#include "checkpoint/files.hpp"
#include "optimizer/models.hpp"
#include "support/faults.hpp"
#include "support/ranks.hpp"
#include "support/temp_folder.hpp"

/// Training that was saved and loaded goes on with the bits it would have had.

namespace outerloop::testing {
namespace {

using torch::optim::OptimizerParamGroup;
using torch::optim::SGD;
using torch::optim::SGDOptions;

using Wrap = std::function<std::unique_ptr<OuterLoopOptimizer>(std::vector<Tensor>, std::shared_ptr<Communicator>)>;

constexpr int64_t sync_every = 3, last_step = 3 * sync_every;

Wrap diloco(const Inner& inner) {
  return [inner](std::vector<Tensor> params, std::shared_ptr<Communicator> comm) {
    return std::make_unique<DiLoCoOptimizer>(inner.make(std::move(params)), std::move(comm),
                                             DiLoCoOptions{.sync_every = sync_every});
  };
}
Wrap local_sgd(const Inner& inner) {
  return [inner](std::vector<Tensor> params, std::shared_ptr<Communicator> comm) {
    return std::make_unique<LocalSGDOptimizer>(inner.make(std::move(params)), std::move(comm),
                                               LocalSGDOptions{.sync_every = sync_every});
  };
}
/// Rounds of two levels, over the same group.
Wrap nested(const Inner& inner) {
  return [inner](std::vector<Tensor> params, std::shared_ptr<Communicator> comm) {
    auto inside =
        std::make_unique<LocalSGDOptimizer>(inner.make(std::move(params)), comm, LocalSGDOptions{.sync_every = 2});
    return std::make_unique<DiLoCoOptimizer>(std::move(inside), std::move(comm),
                                             DiLoCoOptions{.sync_every = sync_every});
  };
}

/// One replica in the middle of a run.
struct Training {
  Mlp model;
  std::unique_ptr<OuterLoopOptimizer> optimizer;
  int replica;

  Training(const Wrap& wrap, const std::shared_ptr<Communicator>& comm)
      : optimizer(wrap(model.params, comm)), replica(comm->rank()) {}
  void train_to(int64_t end) {
    while (optimizer->local_steps() < end) {
      closure_step(*optimizer, model, optimizer->local_steps() + 1, replica);
      optimizer->param_groups()[0].options().set_lr(0.1 / static_cast<double>(optimizer->local_steps()));  // a schedule
    }
  }
};

struct Saved {
  std::vector<Tensor> params;
  std::string file;
};

void expect_resumes_at_every_step(const Wrap& wrap) {
  run_ranks(2, [&](std::shared_ptr<Communicator> comm) {
    Training expected(wrap, comm), saving(wrap, comm);
    expected.train_to(last_step);
    std::vector<Saved> saves;
    for (int64_t step = 0; step <= last_step; ++step) {
      saving.train_to(step);
      saves.push_back({copies(saving.model.params), saved(*saving.optimizer)});
    }
    EXPECT_TRUE(same_bits(saving.model.params, expected.model.params)) << "saving changed the run";
    for (int64_t step = 0; step <= last_step; ++step) {
      Training resumed(wrap, comm);
      assign(resumed.model.params, saves[step].params);
      load(*resumed.optimizer, saves[step].file);
      EXPECT_EQ(resumed.optimizer->local_steps(), step);
      resumed.train_to(last_step);
      EXPECT_TRUE(same_bits(resumed.model.params, expected.model.params)) << "saved at step " << step;
      EXPECT_TRUE(same_bits(resumed.optimizer->anchors(), expected.optimizer->anchors())) << "saved at step " << step;
      EXPECT_EQ(resumed.optimizer->rounds(), expected.optimizer->rounds()) << "saved at step " << step;
    }
  });
}

class Resume : public ::testing::TestWithParam<Inner> {};
INSTANTIATE_TEST_SUITE_P(All, Resume, ::testing::ValuesIn(inners()), name_of);

TEST_P(Resume, AtEveryInnerStepOfThreeWindowsContinuesBitForBit) { expect_resumes_at_every_step(diloco(GetParam())); }

TEST(Resumed, LocalSgdContinuesBitForBit) { expect_resumes_at_every_step(local_sgd(inners()[1])); }

TEST(Resumed, NestedWrappersContinueBitForBit) { expect_resumes_at_every_step(nested(inners()[1])); }

TEST(Resumed, MixedTypesAndStridesContinueBitForBit) {
  const auto make = [] {
    return std::vector<Tensor>{leaf(eighths({3, 2}, 0).to(at::kBFloat16)),
                               leaf(eighths({3}, 1).to(at::kDouble)),
                               eighths({2}, 2),
                               leaf(eighths({3, 4}, 3).t()),
                               leaf(torch::empty({0})),
                               leaf(eighths({5}, 4).to(at::kHalf))};
  };
  const auto wrap = [](const std::vector<Tensor>& params) {
    return DiLoCoOptimizer(SGD(params, SGDOptions(0.3).momentum(0.9)), connect_alone(), {.sync_every = 2});
  };
  const auto train = [](Optimizer& optimizer, const std::vector<Tensor>& params, int64_t from, int64_t to) {
    for (int64_t step = from; step < to; ++step) {
      for (const Tensor& param : params) {
        if (param.requires_grad()) param.mutable_grad() = param.detach() * 0.1 * step;
      }
      optimizer.step();
    }
  };
  const auto params = make(), other = make();
  auto optimizer = wrap(params), resumed = wrap(other);
  train(optimizer, params, 0, 5);
  assign(other, copies(params));
  load(resumed, saved(optimizer));
  EXPECT_TRUE(same_bits(resumed.anchors(), optimizer.anchors()));
  train(optimizer, params, 5, 9);
  train(resumed, other, 5, 9);
  EXPECT_TRUE(same_bits(other, copies(params)));
  EXPECT_TRUE(same_bits(resumed.anchors(), optimizer.anchors()));
}

TEST(Resumed, OptimizerThatGrewAGroupLoadsIntoOneGrownAlike) {
  const auto make = [](const Mlp& model) {
    DiLoCoOptimizer optimizer(SGD({model.w1, model.b1}, SGDOptions(0.1).momentum(0.9)), connect_alone(),
                              {.sync_every = 3});
    return optimizer;
  };
  const auto grow = [](Optimizer& optimizer, const Mlp& model) {
    optimizer.add_param_group(OptimizerParamGroup({model.w2, model.b2}, std::make_unique<SGDOptions>(0.02)));
  };
  const Mlp model, other;
  auto optimizer = make(model), resumed = make(other);
  closure_step(optimizer, model, 1);
  grow(optimizer, model);
  for (int64_t step = 2; step <= 4; ++step) closure_step(optimizer, model, step);
  grow(resumed, other);
  assign(other.params, model.params);
  load(resumed, saved(optimizer));
  for (int64_t step = 5; step <= 9; ++step) {
    closure_step(optimizer, model, step);
    closure_step(resumed, other, step);
    EXPECT_TRUE(same_bits(other.params, model.params)) << "at step " << step;
  }
}

TEST(Resumed, GrownGroupKeepsItsLocalStepsWhenAnotherOneJoins) {
  run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    const auto make = [&](const Tensor& param) { return LocalSGDOptimizer(SGD({param}, SGDOptions(0.5)), comm); };
    const auto a = leaf(eighths({3}, 0)), b = leaf(eighths({2}, 1)), c = leaf(eighths({4}, 2));
    auto first = make(a), second = make(a);
    first.add_param_group(OptimizerParamGroup({b}));
    step_with_grad(first, {a, b}, 1);
    second.add_param_group(OptimizerParamGroup({b}));
    load(second, saved(first));
    step_with_grad(second, {a, b}, comm->rank());
    second.add_param_group(OptimizerParamGroup({c}));
    step_with_grad(second, {a, b, c}, comm->rank());
    EXPECT_TRUE(same_bits(b, eighths({2}, 1) - 0.5 - comm->rank()));
    EXPECT_TRUE(same_bits(c, eighths({4}, 2) - 0.5 * comm->rank()));
    second.sync();
    EXPECT_TRUE(same_bits(b, eighths({2}, 1) - 0.5 - 0.5));
    EXPECT_TRUE(same_bits(c, eighths({4}, 2) - 0.25));
  });
}

TEST(Resumed, GroupOfFrozenParametersAddedSinceTheLastStepIsSavedToo) {
  const Mlp model, other;
  const auto make = [](const Mlp& of) { return DiLoCoOptimizer(SGD({of.w1}, SGDOptions(0.1)), connect_alone()); };
  auto optimizer = make(model), resumed = make(other);
  for (auto* grown : {&optimizer, &resumed}) {
    grown->add_param_group(OptimizerParamGroup({}));
    grown->add_param_group(OptimizerParamGroup({eighths({2}, 0)}));
  }
  load(resumed, saved(optimizer));
  EXPECT_EQ(resumed.param_groups().size(), 3);
}

/// Runs this very test again in a process of its own, which finds the environment variable and continues from there.
TEST(Resumed, InANewProcessContinuesBitForBit) {
  constexpr const char* variable = "OUTERLOOP_TEST_RESUME_FROM";
  const Wrap wrap = diloco(inner<torch::optim::AdamW>("", torch::optim::AdamWOptions(0.01)));
  Training run(wrap, connect_alone());
  if (const char* folder = std::getenv(variable)) {
    const std::filesystem::path from(folder);
    std::vector<Tensor> params;
    torch::load(params, from / "params.pt");
    assign(run.model.params, params);
    torch::load(*run.optimizer, from / "optimizer.pt");
    run.train_to(last_step);
    torch::save(run.model.params, from / "continued.pt");
    return;
  }
  const TempFolder to;
  run.train_to(sync_every + 1);
  torch::save(run.model.params, to / "params.pt");
  torch::save(*run.optimizer, to / "optimizer.pt");
  const std::string again = std::string(variable) + "='" + to.path().string() + "' '" +
                            std::filesystem::read_symlink("/proc/self/exe").string() +
                            "' --gtest_filter=Resumed.InANewProcessContinuesBitForBit > '" + (to / "log") + "'";
  ASSERT_EQ(std::system(again.c_str()), 0) << std::ifstream(to / "log").rdbuf();
  run.train_to(last_step);
  std::vector<Tensor> continued;
  torch::load(continued, to / "continued.pt");
  EXPECT_TRUE(same_bits(continued, run.model.params));
}

TEST(Load, ReplacesStateThatTheFileLacks) {
  const Wrap wrap = diloco(inner<SGD>("", SGDOptions(0.1).momentum(0.9)));
  Training early(wrap, connect_alone()), trained(wrap, connect_alone()), fresh(wrap, connect_alone());
  const std::string file = saved(*early.optimizer);  // before any momentum or velocity
  trained.train_to(5);
  for (Training* run : {&trained, &fresh}) {
    assign(run->model.params, early.model.params);
    load(*run->optimizer, file);
    EXPECT_TRUE(run->optimizer->inner().state().empty());
    run->train_to(7);
  }
  EXPECT_TRUE(same_bits(trained.model.params, fresh.model.params));
  EXPECT_TRUE(same_bits(trained.optimizer->anchors(), fresh.optimizer->anchors()));
}

TEST(Load, BringsOptionsOfEveryGroupBack) {
  const Mlp model;
  DiLoCoOptimizer optimizer(SGD({OptimizerParamGroup({model.w1}), OptimizerParamGroup({model.w2})}, SGDOptions(0.1)),
                            connect_alone());
  optimizer.param_groups()[1].options().set_lr(1e-3);  // libtorch's default, which later versions take for unset
  const std::string file = saved(optimizer);
  for (auto& group : optimizer.param_groups()) group.options().set_lr(7);
  load(optimizer, file);
  EXPECT_EQ(optimizer.param_groups()[0].options().get_lr(), 0.1);
  EXPECT_EQ(optimizer.param_groups()[1].options().get_lr(), 1e-3);
}

/// The inner optimizer has no state here: libtorch's own would be shared with the archive.
TEST(Load, TwiceFromOneArchiveGivesOptimizersThatShareNoOuterState) {
  const Wrap wrap = diloco(inner<SGD>("", SGDOptions(0.1)));
  Training source(wrap, connect_alone()), first(wrap, connect_alone()), second(wrap, connect_alone());
  source.train_to(5);
  std::istringstream stream(saved(*source.optimizer));
  torch::serialize::InputArchive archive;
  archive.load_from(stream);
  for (Training* run : {&first, &second}) {
    assign(run->model.params, source.model.params);
    run->optimizer->load(archive);
  }
  first.train_to(8);  // moves anchor and velocity in place
  second.train_to(8);
  source.train_to(8);
  EXPECT_TRUE(same_bits(first.model.params, source.model.params));
  EXPECT_TRUE(same_bits(second.model.params, source.model.params));
}

TEST(Save, NeitherCommunicatesNorChangesAnything) {
  run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    const auto tapped = std::make_shared<Tapped>(comm);
    Training run(diloco(inners()[1]), tapped);
    run.train_to(sync_every + 1);
    const size_t calls = tapped->calls.size();
    const auto params = copies(run.model.params), anchors = run.optimizer->anchors();
    const std::string file = saved(*run.optimizer);
    EXPECT_EQ(saved(*run.optimizer), file);
    load(*run.optimizer, file);
    EXPECT_EQ(saved(*run.optimizer), file);
    EXPECT_EQ(tapped->calls.size(), calls);
    EXPECT_TRUE(same_bits(run.model.params, params));
    EXPECT_TRUE(same_bits(run.optimizer->anchors(), anchors));
    EXPECT_EQ(run.optimizer->local_steps(), sync_every + 1);
    EXPECT_EQ(run.optimizer->rounds(), 1);
  });
}

TEST(Save, BeforeTheFirstStepMakesNoInnerState) {
  Training run(diloco(inner<torch::optim::Adam>("", torch::optim::AdamOptions(0.01))), connect_alone());
  saved(*run.optimizer);
  EXPECT_TRUE(run.optimizer->inner().state().empty());
  EXPECT_EQ(run.optimizer->local_steps(), 0);
}

}  // namespace
}  // namespace outerloop::testing
