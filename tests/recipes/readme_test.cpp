#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdio>
#include <filesystem>
#include <outerloop/outerloop.hpp>

#include "support/ranks.hpp"
#include "support/temp_folder.hpp"

/// The C++ blocks of README.md, run as they stand there; each test supplies what its block takes for granted.

namespace outerloop::testing {
namespace {

struct Classifier : torch::nn::Module {
  Classifier() { register_module("layer", layer); }
  torch::Tensor forward(const torch::Tensor& x) { return layer->forward(x); }
  torch::nn::Linear layer{4, 4};
};

/// The same on every rank: weights are multiples of 1/8.
std::shared_ptr<Classifier> make_model() {
  auto model = std::make_shared<Classifier>();
  torch::NoGradGuard no_grad;
  for (auto& param : model->parameters())
    param.copy_(torch::arange(param.numel()).view(param.sizes()).remainder(5) / 8);
  return model;
}

/// Rows of one hot feature, whose index is the class; `shift` gives replicas other data.
std::vector<std::pair<torch::Tensor, torch::Tensor>> make_batches(int64_t count, int64_t shift = 0) {
  std::vector<std::pair<torch::Tensor, torch::Tensor>> batches;
  for (int64_t i = 0; i < count; ++i) {
    const auto y = (torch::arange(3) + i + shift).remainder(4);
    batches.emplace_back(torch::one_hot(y, 4).to(torch::kFloat), y);
  }
  return batches;
}

double mean_loss(Classifier& model) {
  torch::NoGradGuard no_grad;
  const auto y = torch::arange(4);
  return torch::nn::functional::cross_entropy(model.forward(torch::eye(4)), y).item<double>();
}

/// A working directory of its own, for recipes that write files.
class Folder {
 public:
  Folder() { std::filesystem::current_path(folder_.path()); }
  ~Folder() { std::filesystem::current_path(before_); }

 private:
  const std::filesystem::path before_ = std::filesystem::current_path();
  const TempFolder folder_;
};

TEST(Readme, TenLinesTrainAndSave) {
  const Folder folder;
  auto model = make_model();
  const auto batches = make_batches(200);
  const double before = mean_loss(*model);

#include "readme/ten_lines.inc"

  EXPECT_EQ(opt.rounds(), 2);
  EXPECT_LT(mean_loss(*model), before);

  DiLoCoOptimizer again(torch::optim::AdamW(model->parameters(), 4e-4), connect_alone(), {.sync_every = 100});
  torch::load(again, "run-0.pt");
  EXPECT_EQ(again.rounds(), 2);
  EXPECT_EQ(again.local_steps(), 200);
  for (size_t i = 0; i < opt.anchors().size(); ++i) EXPECT_TRUE(again.anchors()[i].equal(opt.anchors()[i]));
}

TEST(Readme, OwnRecipeEqualsDiLoCoOptimizer) {
  const int64_t steps = 12, sync_every = 4;
  const auto all_equal = run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
    const auto batches = make_batches(steps, comm->rank());
    const auto local_step = [](Classifier& model, torch::optim::Optimizer& opt, const auto& batch) {
      opt.zero_grad();
      torch::nn::functional::cross_entropy(model.forward(batch.first), batch.second).backward();
      opt.step();
    };

    const auto make_own_model = [&] {  // of replicas that did not begin alike
      auto model = make_model();
      const torch::NoGradGuard no_grad;
      for (Tensor& param : model->parameters()) param.add_(comm->rank());
      return model;
    };
    auto model = make_own_model();
    torch::optim::SGD inner(model->parameters(), 0.1);
    auto batch = batches.begin();
    const auto train_step = [&] { local_step(*model, inner, *batch++); };

#include "readme/own_recipe.inc"

    auto same = make_own_model();
    DiLoCoOptimizer opt(torch::optim::SGD(same->parameters(), 0.1), comm, {.sync_every = sync_every});
    for (const auto& each : batches) local_step(*same, opt, each);
    const auto expected = same->parameters(), found = model->parameters();
    bool equal = opt.rounds() == 3 && !found[0].equal(make_model()->parameters()[0]);
    for (size_t i = 0; i < expected.size(); ++i) equal = equal && found[i].equal(expected[i]);
    return equal ? 1 : 0;
  });
  EXPECT_EQ(all_equal, (std::vector<int>{1, 1}));
}

TEST(Readme, OptionsReportEachRound) {
  ::testing::internal::CaptureStdout();
  run_ranks(2, [](const std::shared_ptr<Communicator>& comm) {
    auto model = make_model();
    int64_t tokens_seen = 12;

#include "readme/options.inc"

    for (const auto& [x, y] : make_batches(20, comm->rank())) {
      opt.zero_grad();
      torch::nn::functional::cross_entropy(model->forward(x), y).backward();
      opt.step();
    }
  });
  const std::string line = "round 1: committed, " + std::to_string(all_reduce_bytes(4 * 20, 2)) + " bytes\n";
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), line + line);
}

TEST(Readme, SparseLoCoSendsAFraction) {
  const auto sent = run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    auto model = make_model();
    int64_t bytes = 0;
    const auto train = [&](DiLoCoOptimizer& opt) {
      for (auto& [x, y] : make_batches(30, comm->rank())) {
        opt.zero_grad();
        torch::nn::functional::cross_entropy(model->forward(x), y).backward();
        opt.step();
      }
    };
#include "readme/sparse_loco.inc"
    train(opt);
    EXPECT_EQ(opt.rounds(), 2);
    sparse_loco.sync.on_sync = [&](const SyncReport& report) { bytes = report.wire_bytes; };
    DiLoCoOptimizer again(torch::optim::AdamW(model->parameters(), 4e-4), comm, sparse_loco);
    train(again);
    return bytes;
  });
  EXPECT_EQ(sent[0], 16 + 1);  // one of 20 elements: an index, a value, two magnitudes, aligned; and a byte
}

TEST(Readme, StreamingEndsWithEqualAnchorsAndNothingUnderWay) {
  const auto anchors = run_ranks(2, [](const std::shared_ptr<Communicator>& comm) {
    const auto batches = make_batches(48, comm->rank());
    auto model = make_model();
    const double before = mean_loss(*model);

#include "readme/streaming.inc"

    EXPECT_TRUE(opt.idle());
    EXPECT_EQ(opt.rounds(), 4 + 5 + 1);  // two windows, the part of a third, and what was drained
    EXPECT_LT(mean_loss(*model), before);
    return opt.anchors();
  });
  for (size_t i = 0; i < anchors[0].size(); ++i) EXPECT_TRUE(torch::equal(anchors[0][i], anchors[1][i]));
}

}  // namespace
}  // namespace outerloop::testing
