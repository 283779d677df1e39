#include <torch/nn/modules/linear.h>
#include <outerloop/outerloop.hpp>

#include "checkpoint/files.hpp"
#include "optimizer/models.hpp"
#include "optimizer/thrown.hpp"

/// A file that does not belong to the optimizer is refused before anything changes.

namespace outerloop::testing {
namespace {

using torch::optim::OptimizerParamGroup;
using torch::optim::SGD;
using torch::optim::SGDOptions;

/// What a run is made of; the defaults are those of the file that the others are offered.
struct Recipe {
  std::vector<Tensor> params{leaf(eighths({3}, 0)), leaf(eighths({2, 2}, 1))};
  std::function<std::unique_ptr<Optimizer>(const std::vector<Tensor>&)> inner = [](const auto& params) {
    return std::make_unique<SGD>(params, SGDOptions(0.1).momentum(0.9));
  };
  std::shared_ptr<const OuterRule> rule = std::make_shared<Nesterov>(0.7, 0.9);
  std::vector<std::string> names{"a", "b"};

  std::unique_ptr<OuterLoopOptimizer> make() const {
    return std::make_unique<OuterLoopOptimizer>(inner(params), connect_alone(), rule, /*sync_every=*/3, Streaming{},
                                                SyncOptions{.names = names});
  }
  void train(OuterLoopOptimizer& optimizer, int steps) const {
    for (int step = 0; step < steps; ++step) step_with_grad(optimizer, params, 1 + step);
  }
};

struct Mismatch {
  std::string name;
  std::function<void(Recipe&)> change;
  std::vector<std::string> says;
};
std::ostream& operator<<(std::ostream& out, const Mismatch& mismatch) { return out << mismatch.name; }

template <class Kind>
std::function<void(Recipe&)> inner_is() {
  return [](Recipe& recipe) { recipe.inner = [](const auto& params) { return std::make_unique<Kind>(params, 0.1); }; };
}
template <class Rule, class... Settings>
std::function<void(Recipe&)> rule_is(Settings... settings) {
  return [=](Recipe& recipe) { recipe.rule = std::make_shared<Rule>(settings...); };
}

std::vector<Mismatch> mismatches() {
  return {
      {"InnerAdam", inner_is<torch::optim::Adam>(), {"SGD", "Adam"}},
      {"InnerAdagrad", inner_is<torch::optim::Adagrad>(), {"SGD", "Adagrad"}},
      {"InnerNested",
       [](Recipe& recipe) {
         recipe.inner = [](const auto& params) {
           return std::make_unique<LocalSGDOptimizer>(SGD(params, SGDOptions(0.1).momentum(0.9)), connect_alone());
         };
       },
       {"SGD", "LocalSGDOptimizer"}},
      {"RuleAverage", rule_is<Average>(), {"Nesterov", "Average"}},
      {"RuleWithoutMomentum", rule_is<Nesterov>(0.7, 0.0), {"Nesterov", "0.9"}},
      {"OuterLr", rule_is<Nesterov>(0.5, 0.9), {"0.7", "0.5"}},
      {"OuterMomentum", rule_is<Nesterov>(0.7, 0.5), {"0.9", "0.5"}},
      {"HeavyBall", rule_is<Nesterov>(0.7, 0.9, false), {"nesterov"}},
      {"MoreParameters",
       [](Recipe& recipe) {
         recipe.params.push_back(leaf(eighths({2}, 0)));
         recipe.names.emplace_back("c");
       },
       {"'c'"}},
      {"FewerParameters",
       [](Recipe& recipe) {
         recipe.params.pop_back();
         recipe.names.pop_back();
       },
       {"'b'"}},
      {"Shape",
       [](Recipe& recipe) {
         recipe.params[1] = leaf(eighths({2, 3}, 0));
       },
       {"'b'", "[2, 2]", "[2, 3]"}},
      {"ShapeOfTheSameSize",
       [](Recipe& recipe) { recipe.params[1] = leaf(eighths({4}, 0)); },
       {"'b'", "[2, 2]", "[4]"}},
      {"Order", [](Recipe& recipe) { std::swap(recipe.params[0], recipe.params[1]); }, {"'a'", "[3]", "[2, 2]"}},
      {"Type",
       [](Recipe& recipe) { recipe.params[0] = leaf(eighths({3}, 0).to(at::kHalf)); },
       {"'a'", "Float", "Half"}},
      {"Name",
       [](Recipe& recipe) {
         recipe.names = {"a", "c"};
       },
       {"'b'", "'c'"}},
      {"Grouping",
       [](Recipe& recipe) {
         recipe.inner = [](const auto& params) {
           return std::make_unique<SGD>(std::vector{OptimizerParamGroup({params[0]}), OptimizerParamGroup({params[1]})},
                                        SGDOptions(0.2).momentum(0.9));
         };
       },
       {"group"}},
  };
}

/// Offers files to an optimizer in mid-window; afterwards it must be as it was, and train on as its twin does.
class Offered {
 public:
  explicit Offered(const std::function<void(Recipe&)>& change = [](Recipe&) {}) {
    for (Recipe* recipe : {&recipe_, &twin_recipe_}) change(*recipe);
    optimizer_ = recipe_.make();
    twin_ = twin_recipe_.make();
    recipe_.train(*optimizer_, 5);
    twin_recipe_.train(*twin_, 5);
  }

  Thrown load(const std::string& file) {
    const std::string before = saved(*optimizer_);
    const auto params = copies(recipe_.params);
    const Thrown thrown = thrown_by([&] { testing::load(*optimizer_, file); });
    EXPECT_TRUE(saved(*optimizer_) == before) << "the refused file changed the optimizer";
    EXPECT_TRUE(same_bits(recipe_.params, params));
    return thrown;
  }

  void expect_trains_on() {
    recipe_.train(*optimizer_, 4);
    twin_recipe_.train(*twin_, 4);
    EXPECT_TRUE(same_bits(recipe_.params, twin_recipe_.params));
    EXPECT_TRUE(same_bits(optimizer_->anchors(), twin_->anchors()));
    EXPECT_EQ(optimizer_->rounds(), twin_->rounds());
  }

 private:
  Recipe recipe_, twin_recipe_;
  std::unique_ptr<OuterLoopOptimizer> optimizer_, twin_;
};

std::string file() {
  const Recipe recipe;
  const auto optimizer = recipe.make();
  recipe.train(*optimizer, 4);
  return saved(*optimizer);
}

class Refused : public ::testing::TestWithParam<Mismatch> {};
INSTANTIATE_TEST_SUITE_P(All, Refused, ::testing::ValuesIn(mismatches()),
                         [](const auto& info) { return info.param.name; });

TEST_P(Refused, BeforeAnythingChanges) {
  Offered offered(GetParam().change);
  EXPECT_TRUE(is(offered.load(file()), "CheckpointError", GetParam().says));
  offered.expect_trains_on();
}

TEST(RefusedFile, AdamAndAdamWDoNotMix) {
  Offered adamw(inner_is<torch::optim::AdamW>());
  Recipe recipe;
  inner_is<torch::optim::Adam>()(recipe);
  const auto adam = recipe.make();
  recipe.train(*adam, 4);
  EXPECT_TRUE(is(adamw.load(saved(*adam)), "CheckpointError", {"torch::optim::Adam", "torch::optim::AdamW"}));
  adamw.expect_trains_on();
}

TEST(RefusedFile, TruncatedAnywhereChangesNothing) {
  Offered offered;
  const std::string whole = file();
  for (const size_t size :
       {size_t{0}, size_t{1}, size_t{100}, whole.size() / 2, whole.size() - 100, whole.size() - 1}) {
    EXPECT_FALSE(is(offered.load(whole.substr(0, size)), "")) << size << " of " << whole.size() << " bytes";
  }
  offered.expect_trains_on();
}

TEST(RefusedFile, OfAnotherKindIsACheckpointError) {
  Offered offered;
  const auto written = [](const auto& value) {
    std::ostringstream stream;
    torch::save(value, stream);
    return stream.str();
  };
  const Recipe recipe;
  EXPECT_TRUE(is(offered.load(written(SGD(recipe.params, 0.1))), "CheckpointError", {"not", "outerloop"}));
  EXPECT_TRUE(is(offered.load(written(recipe.params)), "CheckpointError", {"not", "outerloop"}));
  EXPECT_TRUE(is(offered.load(written(torch::nn::Linear(2, 3))), "CheckpointError", {"not", "outerloop"}));
  offered.expect_trains_on();
}

/// A file of a program that had another idea of the format: without this key, or with another value there.
std::string damaged(const std::string& lost, const c10::IValue& instead = {}) {
  std::istringstream in(file());
  torch::serialize::InputArchive from;
  from.load_from(in);
  torch::serialize::OutputArchive to;
  for (const std::string& key : from.keys()) {
    c10::IValue value;
    if (key != lost && from.try_read(key, value)) to.write(key, value);
  }
  if (!instead.isNone()) to.write(lost, instead);
  std::ostringstream out;
  to.save_to(out);
  return out.str();
}

TEST(RefusedFile, WithImpossibleCountsIsACheckpointError) {
  Offered offered;
  for (const int64_t count : {int64_t{-1}, int64_t{1} << 60}) {
    for (const auto* key : {"buckets", "bucket0_slots"}) {
      EXPECT_TRUE(is(offered.load(damaged(key, count)), "CheckpointError", {key, std::to_string(count)}));
    }
  }
  offered.expect_trains_on();
}

TEST(RefusedFile, WithoutItsInnerOptimizerChangesNothing) {
  Offered offered;
  for (const auto* key :
       {"inner", "inner_type", "parameters", "inner_step", "bucket0_anchor", "bucket0_slot0", "format"}) {
    EXPECT_TRUE(is(offered.load(damaged(key)), "CheckpointError")) << "without " << key;
  }
  offered.expect_trains_on();
}

}  // namespace
}  // namespace outerloop::testing
