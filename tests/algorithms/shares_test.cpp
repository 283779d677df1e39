#include <gtest/gtest.h>

#include "algorithms/quadratic.hpp"

// How much each replica counts in the mean.

namespace outerloop {
namespace {

using testing::Path;
using testing::Quadratic;
using testing::same_bits;

TEST(Shares, EqualReplicasDoNotDependOnTheirNumber) {
  const Quadratic one = testing::rounding_problem(1);
  const DiLoCoOptions options{.sync_every = 3, .outer_lr = 0.7, .outer_momentum = 0.9};
  const Path alone = train_diloco(one, 30, options)[0];
  for (const int ranks : {2, 4}) {  // powers of two, whose sums and means of equal numbers are exact
    const Quadratic equal{.start = one.start, .targets = std::vector<Tensor>(ranks, one.targets[0]), .lr = one.lr};
    for (const Path& path : train_diloco(equal, 30, options)) EXPECT_TRUE(same_bits(path, alone)) << ranks << " ranks";
  }
}

/// Two replicas of weights 1 and 3 (in units of `unit`), and four of which three are copies of the second.
void expect_weights_are_copies(const Quadratic& two, const DiLoCoOptions& options, double unit, double bound) {
  const auto weighted = train(two, 12, [&](torch::optim::SGD inner, auto comm) {
    DiLoCoOptions mine = options;
    mine.sync.weight = [share = unit * (comm->rank() == 0 ? 1 : 3)] { return share; };
    return DiLoCoOptimizer(std::move(inner), comm, mine);
  });
  const auto& [first, second] = std::tie(two.targets[0], two.targets[1]);
  const Quadratic four{.start = two.start, .targets = {first, second, second, second}, .lr = two.lr};
  const auto copied = train_diloco(four, 12, options);
  for (size_t t = 0; t < 12; ++t) {
    for (int r = 0; r < 2; ++r) EXPECT_LE(testing::ulps(weighted[r][t], copied[r][t], two.scale()), bound);
  }
}

TEST(Shares, WeightsEqualCopiesOfReplicas) {
  const DiLoCoOptions halves{.sync_every = 3, .outer_lr = 0.5, .outer_momentum = 0.5};
  expect_weights_are_copies(testing::exact_problem(2), halves, 1, 0);
  const DiLoCoOptions paper{.sync_every = 3, .outer_lr = 0.7, .outer_momentum = 0.9};
  expect_weights_are_copies(testing::rounding_problem(2), paper, 1000, 16);
}

}  // namespace
}  // namespace outerloop
