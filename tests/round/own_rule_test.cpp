#include <gtest/gtest.h>

#include "round/replica.hpp"

// Outer rules that users write.

namespace outerloop {
namespace {

using testing::parameter;
using testing::same_bits;
using testing::says;

/// Moves the anchor half the way, and does `more` in the call of that number.
class HalfWay final : public OuterRule {
 public:
  explicit HalfWay(int call = 0, std::function<void(OuterState&)> more = nullptr)
      : call_(call), more_(std::move(more)) {}
  int slots() const override { return 1; }
  void step(OuterState& state, const Tensor& mean_delta) const override {
    state.slots[0].add_(mean_delta);
    state.anchor.sub_(mean_delta, 0.5);
    if (++calls_ == call_) more_(state);
  }
  std::string describe() const override { return "HalfWay"; }

 private:
  int call_;
  std::function<void(OuterState&)> more_;
  mutable int calls_ = 0;
};

/// Two replicas step by their rank + 1, a float32 and a float64 parameter alike; returns what step 2 threw on rank 0.
std::string second_step_says(const std::function<std::shared_ptr<const OuterRule>()>& rule) {
  return testing::run_ranks(2, [&](std::shared_ptr<Communicator> comm) {
    const Tensor a = parameter(torch::zeros({3})), b = parameter(torch::zeros({2}, at::kDouble));
    OuterLoopOptimizer optimizer(std::make_unique<torch::optim::SGD>(std::vector{a, b}, 1.0), comm, rule(), 1);
    const auto step = [&] {
      for (const Tensor& p : {a, b}) p.mutable_grad() = torch::full_like(p, comm->rank() + 1.0).detach();
      optimizer.step();
    };
    step();
    EXPECT_TRUE(torch::equal(a.detach(), torch::full({3}, -0.75)));
    EXPECT_TRUE(torch::equal(b.detach(), torch::full({2}, -0.75, at::kDouble)));
    const auto anchors = optimizer.anchors();
    const std::string message = testing::message_of<std::exception>(step);
    EXPECT_EQ(optimizer.rounds(), 1);
    EXPECT_TRUE(same_bits(optimizer.anchors(), anchors));
    step();  // the rule is in order again: the round takes both steps
    EXPECT_EQ(optimizer.rounds(), 2);
    EXPECT_TRUE(torch::equal(a.detach(), torch::full({3}, -0.75 - 1.5)));
    return message;
  })[0];
}

TEST(OwnRule, ThatThrowsInItsSecondBucketChangesNothing) {
  const auto fails = [] {
    return std::make_shared<HalfWay>(4, [](OuterState&) { throw std::domain_error("the rule's own words"); });
  };
  EXPECT_TRUE(says(second_step_says(fails), "the rule's own words"));
}

TEST(OwnRule, WhoseCommErrorIsNotTheGroupsIsThrownAndAllGoOn) {
  testing::run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    const Tensor param = parameter(torch::zeros({3}));
    const auto rule = std::make_shared<HalfWay>(2, [](OuterState&) { throw CommError("of another group"); });
    int asked = 0;
    OuterLoopOptimizer optimizer(std::make_unique<torch::optim::SGD>(std::vector{param}, 1.0), comm, rule, 1, {},
                                 {.on_comm_error = [&] {
                                   ++asked;
                                   return std::shared_ptr<Communicator>();
                                 }});
    const auto step = [&] {
      param.mutable_grad() = torch::ones_like(param).detach();
      optimizer.step();
    };
    step();
    EXPECT_TRUE(says(testing::message_of<CommError>(step), "of another group"));
    step();
    EXPECT_EQ(asked, 0);
    EXPECT_EQ(optimizer.rounds(), 2);
  });
}

TEST(OwnRule, ThatReplacesAVectorByAnotherTypeIsRefused) {
  const auto widens = [] {
    return std::make_shared<HalfWay>(3, [](OuterState& state) { state.anchor = state.anchor.to(at::kDouble); });
  };
  EXPECT_TRUE(says(second_step_says(widens), "HalfWay::step changed"));
}

}  // namespace
}  // namespace outerloop
