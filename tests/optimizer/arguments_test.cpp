#include <outerloop/outerloop.hpp>

#include <limits>

#include "optimizer/models.hpp"
#include "optimizer/thrown.hpp"
#include "support/ranks.hpp"

/// Unusable arguments are refused at construction, by name and value, and the other replicas do not wait for ever.

namespace outerloop::testing {
namespace {

using torch::optim::OptimizerParamGroup;
using torch::optim::SGD;

std::unique_ptr<Optimizer> sgd(std::vector<Tensor> params) { return std::make_unique<SGD>(std::move(params), 0.5); }
std::unique_ptr<Optimizer> good() { return sgd({leaf(eighths({3}, 0)), leaf(eighths({2, 2}, 1))}); }

using Construct = std::function<void(std::shared_ptr<Communicator>)>;
struct Refused {
  std::string name;
  Construct construct;
  std::vector<std::string> says;  ///< the argument and its value
};
std::ostream& operator<<(std::ostream& out, const Refused& refused) { return out << refused.name; }

Construct diloco(DiLoCoOptions options) {
  return [options](std::shared_ptr<Communicator> comm) { DiLoCoOptimizer(good(), comm, options); };
}
Construct local_sgd(LocalSGDOptions options) {
  return [options](std::shared_ptr<Communicator> comm) { LocalSGDOptimizer(good(), comm, options); };
}
Construct training(std::function<std::unique_ptr<Optimizer>()> inner) {
  return [inner](std::shared_ptr<Communicator> comm) { DiLoCoOptimizer(inner(), comm); };
}

/// libtorch without CUDA makes no tensor on a GPU, but believes what it is told of memory that is there already.
Tensor said_to_be_on_a_gpu() {
  static float elements[2];
  const at::Device gpu(at::kCUDA, 0);
  return at::for_blob(elements, {2}).target_device(gpu).options(at::dtype(at::kFloat).device(gpu)).make_tensor();
}

std::vector<Refused> refused() {
  const double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
  return {
      {"SyncEveryZero", local_sgd({.sync_every = 0}), {"sync_every", "0"}},
      {"SyncEveryNegative", diloco({.sync_every = -3}), {"sync_every", "-3"}},
      {"LrNegative", diloco({.outer_lr = -0.25}), {"outer_lr", "-0.25"}},
      {"LrNan", diloco({.outer_lr = nan}), {"outer_lr", "nan"}},
      {"LrInfinite", diloco({.outer_lr = infinity}), {"outer_lr", "inf"}},
      {"LrBeyondFloat32", diloco({.outer_lr = 1e300}), {"outer_lr", "1e+300"}},
      {"MomentumOne", diloco({.outer_momentum = 1}), {"outer_momentum", "1"}},
      {"MomentumNegative", diloco({.outer_momentum = -0.5}), {"outer_momentum", "-0.5"}},
      {"MomentumNan", diloco({.outer_momentum = nan}), {"outer_momentum", "nan"}},
      {"KeepLocalAboveOne", diloco({.streaming = {.keep_local = 1.5}}), {"keep_local", "1.5"}},
      {"KeepLocalNegative", diloco({.streaming = {.keep_local = -1}}), {"keep_local", "-1"}},
      {"KeepLocalNan", diloco({.streaming = {.keep_local = nan}}), {"keep_local", "nan"}},
      {"EagerWithoutDelay", diloco({.streaming = {.eager = true}}), {"eager", "sync_every 100", "got 0"}},
      {"EagerWithinAWindow",
       diloco({.sync_every = 4, .streaming = {.delay = 6, .eager = true}}),
       {"eager", "sync_every 4", "got 6"}},
      {"DelayNegative", diloco({.streaming = {.delay = -2}}), {"delay", "-2"}},
      {"CodecNull", diloco({.sync = {.codec = nullptr}}), {"codec is null"}},
      {"CodecOfEagerReplicas",
       diloco({.sync_every = 4, .streaming = {.delay = 4, .eager = true}, .sync = {.codec = codecs::int8()}}),
       {"eager", "int8"}},
      {"FeedbackOfFp32", diloco({.sync = {.error_feedback = ErrorFeedback{}}}), {"error_feedback", "fp32"}},
      {"FeedbackThatForgetsAll",
       local_sgd({.sync = {.codec = codecs::int8(), .error_feedback = ErrorFeedback{.decay = 0}}}),
       {"decay", "got 0"}},
      {"FeedbackThatGrows",
       local_sgd({.sync = {.codec = codecs::int8(), .error_feedback = ErrorFeedback{.decay = 1.5}}}),
       {"decay", "got 1.5"}},
      {"ResidualsInFloat64",
       local_sgd({.sync = {.codec = codecs::int8(), .error_feedback = ErrorFeedback{.residual = at::kDouble}}}),
       {"residual", "Double"}},
      {"FeedbackThatComesTooLate",
       diloco({.sync_every = 4,
               .streaming = {.delay = 4},
               .sync = {.codec = codecs::int8(), .error_feedback = ErrorFeedback{}}}),
       {"error_feedback", "sync_every 4", "got 4"}},
      {"MoreFragmentsThanElements",
       diloco({.streaming = {.fragments = FragmentPlan::sequential(8)}}),
       {"fragments", "8", "7 elements"}},
      {"MoreFragmentsThanSteps",
       diloco({.sync_every = 2, .streaming = {.fragments = FragmentPlan::strided(3)}}),
       {"sync_every", "2", "3 fragments"}},
      {"FragmentsThatMissAParameter",
       diloco({.streaming = {.fragments = FragmentPlan::listed({{1}})}}),
       {"parameter 0", "no fragment"}},
      {"FragmentsThatRepeatAParameter",
       diloco({.streaming = {.fragments = FragmentPlan::listed({{0}, {1, 0}})}}),
       {"parameter 0", "fragment 0", "fragment 1"}},
      {"FragmentsOfAnUnknownParameter",
       diloco({.streaming = {.fragments = FragmentPlan::listed({{0, 1}, {2}})}}),
       {"fragment 1", "parameter 2", "there are 2"}},
      {"FragmentOfNothing",
       diloco({.streaming = {.fragments = FragmentPlan::listed({{0, 1}, {}})}}),
       {"fragment 1", "no element"}},
      {"NamesOfAnotherNumber", local_sgd({.sync = {.names = {"a", "b", "c"}}}), {"names", "3", "2"}},
      {"InnerNull", training([] { return nullptr; }), {"inner", "null"}},
      {"RuleNull", [](auto comm) { OuterLoopOptimizer(good(), comm, nullptr, /*sync_every=*/4); }, {"rule", "null"}},
      {"NoParameters", training([] { return sgd({}); }), {"no parameters"}},
      {"NoGroups",
       training([] { return std::make_unique<SGD>(std::vector<OptimizerParamGroup>{}, torch::optim::SGDOptions(1)); }),
       {"no parameters"}},
      {"SameParameterTwiceInAGroup",
       training([] {
         const auto a = leaf(eighths({3}, 0));
         return sgd({a, leaf(eighths({2}, 0)), a});
       }),
       {"parameter 0", "parameter 2", "same"}},
      {"SameParameterInTwoGroups",
       training([] {
         const auto a = leaf(eighths({3}, 0));
         return std::make_unique<SGD>(std::vector{OptimizerParamGroup({a}), OptimizerParamGroup({a})},
                                      torch::optim::SGDOptions(1));
       }),
       {"parameter 0", "parameter 1", "same"}},
      {"AliasingParameters",
       training([] {
         const auto a = leaf(eighths({3}, 0));
         return sgd({leaf(eighths({2}, 0)), a, leaf(a.detach().view({3, 1}))});
       }),
       {"parameter 1", "parameter 2", "share memory"}},
      {"OverlappingSlices",
       training([] {
         const auto base = eighths({10}, 0);
         return sgd({leaf(base.slice(0, 4, 10)), leaf(base.slice(0, 0, 5))});
       }),
       {"parameter 0", "parameter 1", "share memory"}},
      {"FrozenAliasOfATrainedOne",
       training([] {
         const auto base = eighths({10}, 0);
         return sgd({base, leaf(base.slice(0, 0, 5))});
       }),
       {"parameter 0", "parameter 1", "share memory"}},
      {"ExpandedParameter",
       training([] { return sgd({leaf(eighths({1}, 0).expand({4}))}); }),
       {"parameter 0", "expanded"}},
      {"IntegerParameter",
       training([] {
         return sgd({leaf(eighths({3}, 0)), torch::ones({2}, at::kLong)});
       }),
       {"parameter 1", "Long"}},
      {"ComplexParameter",
       training([] { return sgd({leaf(torch::ones({2}, at::kComplexFloat))}); }),
       {"parameter 0", "ComplexFloat"}},
      {"ParameterOnAnotherDevice",
       training([] { return sgd({leaf(torch::ones({2}, at::kMeta))}); }),
       {"parameter 0", "meta", "cpu"}},
      {"ParameterOnAGpuInABuildWithoutCuda",
       training([] { return sgd({leaf(said_to_be_on_a_gpu())}); }),
       {"parameter 0", "cuda:0", "supports cpu"}},
      {"NamedParameter",
       [](auto comm) {
         LocalSGDOptimizer(sgd({torch::ones({2}, at::kInt)}), comm, {.sync = {.names = {"fc.weight"}}});
       },
       {"fc.weight", "Int"}},
  };
}

class Arguments : public ::testing::TestWithParam<Refused> {};
INSTANTIATE_TEST_SUITE_P(Refused, Arguments, ::testing::ValuesIn(refused()),
                         [](const auto& info) { return info.param.name; });

TEST_P(Arguments, AreRefusedAloneByNameAndValue) {
  EXPECT_TRUE(is(thrown_by([] { GetParam().construct(connect_alone()); }), "c10::Error", GetParam().says));
}

TEST_P(Arguments, RefusedOnOneReplicaMakeTheOthersThrow) {
  const auto group = gloo_group(3);
  const auto thrown = run_ranks(group, [](std::shared_ptr<Communicator> comm) {
    return thrown_by([&] { comm->rank() == 1 ? GetParam().construct(comm) : diloco({})(comm); });
  });
  EXPECT_TRUE(is(thrown[0], "ConsistencyError", {"rank 1"}));
  EXPECT_TRUE(is(thrown[1], "c10::Error", GetParam().says));
  EXPECT_TRUE(is(thrown[2], "ConsistencyError", {"rank 1"}));
  run_ranks(group, [](std::shared_ptr<Communicator> comm) { diloco({})(comm); });  // the group is still usable
}

TEST(Argument, NullCommunicatorIsRefused) {
  EXPECT_TRUE(is(thrown_by([] { LocalSGDOptimizer(good(), nullptr); }), "c10::Error", {"comm", "null"}));
}

/// A group for another kind of device.
struct Elsewhere final : Communicator {
  int rank() const override { return 0; }
  int size() const override { return 1; }
  at::Device device() const override { return {at::kCUDA, 3}; }
  Pending all_reduce_sum(Tensor) override { return {}; }
  Pending all_gather(Tensor, Tensor) override { return {}; }
  Pending all_to_all(Tensor, Tensor) override { return {}; }
  Pending broadcast(Tensor, int) override { return {}; }
};

TEST(Argument, CommunicatorOfAnotherDeviceThanTheParametersIsRefused) {
  const Thrown thrown = thrown_by([] { LocalSGDOptimizer(good(), std::make_shared<Elsewhere>()); });
  EXPECT_TRUE(is(thrown, "c10::Error", {"comm", "cuda:3", "cpu"}));
}

TEST(Argument, ZeroLrZeroMomentumAndSyncEveryOneAreUsable) {
  DiLoCoOptimizer(good(), connect_alone(), {.sync_every = 1, .outer_lr = 0, .outer_momentum = 0});
}

}  // namespace
}  // namespace outerloop::testing
