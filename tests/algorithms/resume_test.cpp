#include <gtest/gtest.h>

#include <sstream>

#include "algorithms/quadratic.hpp"

// Saving at any inner step and going on from there is the run that was never interrupted, bit for bit.

namespace outerloop {
namespace {

using testing::same_bits;
using MakeOptimizer =
    std::function<std::unique_ptr<OuterLoopOptimizer>(std::vector<Tensor>, std::shared_ptr<Communicator>)>;

constexpr int sync_every = 3, steps = 2 * sync_every + 2;

struct Snapshot {
  std::vector<Tensor> params, anchors;
  std::string optimizer;  ///< as torch::save wrote it
};

/// One replica: three parameters of two types, drawn to a target of its own with noise that depends on the step alone.
struct Replica {
  Replica(const MakeOptimizer& make, std::shared_ptr<Communicator> comm, uint64_t seed)
      : params{testing::parameter(testing::normal({4, 5}, seed)), testing::parameter(testing::normal({7}, seed + 1)),
               testing::parameter(testing::normal({3}, seed + 2, at::kDouble))},
        rank(comm->rank()),
        optimizer(make(params, comm)) {}

  void step() {
    const auto t = static_cast<uint64_t>(optimizer->local_steps());
    for (auto& p : params) {
      const Tensor noise = testing::normal(p.sizes(), 100 * t + 10 * static_cast<uint64_t>(rank) + 1, p.scalar_type());
      p.mutable_grad() = p.detach() - rank + noise;
    }
    optimizer->step();
  }
  Snapshot snapshot() const {
    std::ostringstream stream;
    torch::save(*optimizer, stream);
    Snapshot snapshot{.params = {}, .anchors = optimizer->anchors(), .optimizer = stream.str()};
    for (const auto& p : params) snapshot.params.push_back(p.detach().clone());
    return snapshot;
  }
  void restore(const Snapshot& from) {
    for (size_t i = 0; i < params.size(); ++i) params[i].detach().copy_(from.params[i]);
    std::istringstream stream(from.optimizer);
    torch::load(*optimizer, stream);
  }

  std::vector<Tensor> params;
  int rank;
  std::unique_ptr<OuterLoopOptimizer> optimizer;
};

void expect_resumes_anywhere(const MakeOptimizer& make) {
  const auto group = testing::gloo_group(2);
  const auto originals = testing::run_ranks(group, [&](std::shared_ptr<Communicator> comm) {
    Replica replica(make, comm, 1);
    std::vector<Snapshot> after{replica.snapshot()};
    for (int t = 0; t < steps; ++t) {
      replica.step();
      after.push_back(replica.snapshot());
    }
    return after;
  });
  testing::run_ranks(group, [&](std::shared_ptr<Communicator> comm) {
    const auto& original = originals[comm->rank()];
    for (int saved = 0; saved <= steps; ++saved) {
      Replica resumed(make, comm, 1000);  // starts from other values
      resumed.restore(original[saved]);
      EXPECT_EQ(resumed.optimizer->local_steps(), saved);
      for (int t = saved; t < steps; ++t) {
        resumed.step();
        const Snapshot now = resumed.snapshot();
        EXPECT_TRUE(same_bits(now.params, original[t + 1].params)) << "saved at " << saved << ", step " << t + 1;
        EXPECT_TRUE(same_bits(now.anchors, original[t + 1].anchors)) << "saved at " << saved << ", step " << t + 1;
      }
      EXPECT_EQ(resumed.optimizer->rounds(), steps / sync_every);
    }
  });
}

TEST(Resume, ContinuesDiLoCoWithAdamWBitForBitFromAnyStep) {
  expect_resumes_anywhere([](std::vector<Tensor> params, auto comm) {
    return std::make_unique<DiLoCoOptimizer>(torch::optim::AdamW(params, 0.01), comm,
                                             DiLoCoOptions{.sync_every = sync_every});
  });
}

TEST(Resume, ContinuesDiLoCoThatKeepsLocalPartsBitForBitFromAnyStep) {
  expect_resumes_anywhere([](std::vector<Tensor> params, auto comm) {
    return std::make_unique<DiLoCoOptimizer>(
        torch::optim::SGD(params, torch::optim::SGDOptions(0.1).momentum(0.9)), comm,
        DiLoCoOptions{.sync_every = sync_every, .nesterov = false, .streaming = {.keep_local = 0.25}});
  });
}

TEST(Resume, ContinuesLocalSgdBitForBitFromAnyStep) {
  expect_resumes_anywhere([](std::vector<Tensor> params, auto comm) {
    return std::make_unique<LocalSGDOptimizer>(torch::optim::Adagrad(params, 0.1), comm,
                                               LocalSGDOptions{.sync_every = sync_every});
  });
}

}  // namespace
}  // namespace outerloop
