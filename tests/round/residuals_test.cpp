#include <gtest/gtest.h>

#include <sstream>

#include "codec/residuals.hpp"
#include "round/coded.hpp"

// What error feedback keeps, gives back, saves and takes along.

namespace outerloop::testing::coded {
namespace {

TEST(CodedRound, KeepsResidualsInBfloat16) {
  const Setting setting{codecs::e2m1(), ErrorFeedback{.residual = at::kBFloat16}};
  const Tensor expected = defined(setting, 2, 4);
  EXPECT_FALSE(same_bits(expected, defined({codecs::e2m1(), ErrorFeedback{}}, 2, 4)));
  for (const Tensor& anchor : held(setting, group_of(2), 4)) EXPECT_TRUE(same_bits(anchor, expected));
}

TEST(CodedRound, SendsInTheEndAllThatTheDeltasWereWithFeedback) {
  for (const CodecPtr& codec : {codecs::int8(), codecs::e3m0(), codecs::top_k(1.0 / 16, 2)}) {
    for (const int ranks : {1, 3}) {
      const auto anchors = run_ranks(ranks, [&](std::shared_ptr<Communicator> comm) {
        Model model;
        DiLoCoOptimizer optimizer(torch::optim::SGD(model.all(), 1.0), comm,
                                  averaging({.codec = codec, .error_feedback = ErrorFeedback{}}));
        for (int round = 0; round < 100; ++round) {
          model.set_gradient(round < 4 ? moved(comm->rank(), round) : torch::zeros({numel}));
          optimizer.step();
        }
        return flat_of(optimizer.anchors());
      });
      Tensor all = torch::zeros({numel});
      for (int rank = 0; rank < ranks; ++rank) {
        for (int round = 0; round < 4; ++round) all -= moved(rank, round) / ranks;
      }
      EXPECT_LT(relative_error(anchors[0], all), 1e-5) << codec->describe() << " on " << ranks;
    }
  }
}

TEST(CodedRound, ThatAbortsLeavesResidualsAsTheyWere) {
  const auto run = [](bool aborts) {
    return run_ranks(2, [&](std::shared_ptr<Communicator> comm) {
      Model model;
      int round = 0;
      DiLoCoOptions options = averaging({.codec = codecs::int4(), .error_feedback = ErrorFeedback{}});
      options.sync.commit_if = [&](const SyncReport&) { return !aborts || round != 2 || comm->rank() == 0; };
      DiLoCoOptimizer optimizer(torch::optim::SGD(model.all(), 1.0), comm, options);
      for (round = 0; round < 5; ++round) {
        if (round == 2 && !aborts) continue;
        model.set_gradient(moved(comm->rank(), round));
        optimizer.step();
      }
      return flat_of(optimizer.anchors());
    })[0];
  };
  EXPECT_TRUE(same_bits(run(true), run(false)));
}

TEST(CodedRound, GoesOnBitForBitFromACheckpoint) {
  const auto run = [](bool stops) {
    return run_ranks(2, [&](std::shared_ptr<Communicator> comm) {
      auto model = std::make_unique<Model>();
      const DiLoCoOptions options =
          averaging({.codec = codecs::int4(), .error_feedback = ErrorFeedback{.decay = 0.9}}, 2);
      auto optimizer = std::make_unique<DiLoCoOptimizer>(torch::optim::SGD(model->all(), 1.0), comm, options);
      for (int step = 0; step < 9; ++step) {
        if (stops && step == 5) {
          std::stringstream saved;
          torch::save(*optimizer, saved);
          auto next = std::make_unique<Model>();
          {
            const at::NoGradGuard no_grad;
            next->a.copy_(model->a);
            next->b.copy_(model->b);
          }
          model = std::move(next);
          optimizer = std::make_unique<DiLoCoOptimizer>(torch::optim::SGD(model->all(), 1.0), comm, [&] {
            auto o = options;
            o.sync.start = Start::trust;
            return o;
          }());
          torch::load(*optimizer, saved);
        }
        model->set_gradient(moved(comm->rank(), step));
        optimizer->step();
      }
      return flat_of(optimizer->anchors());
    })[0];
  };
  EXPECT_TRUE(same_bits(run(true), run(false)));
}

/// A replica that grows by a group after the first round, and may be saved and loaded before the next.
TEST(CodedRound, GoesOnBitForBitFromACheckpointOfAFragmentThatHasGrown) {
  const auto run = [](bool stops) {
    return run_ranks(2, [&](std::shared_ptr<Communicator> comm) {
      const DiLoCoOptions options = averaging({.codec = codecs::int4(), .error_feedback = ErrorFeedback{}}, 2);
      const auto make = [&](const Model& model) {
        return std::make_unique<DiLoCoOptimizer>(torch::optim::SGD({model.a}, 1.0), comm, options);
      };
      const auto grow = [](OuterLoopOptimizer& optimizer, const Model& model) {
        optimizer.add_param_group(torch::optim::OptimizerParamGroup({model.b}));
      };
      auto model = std::make_unique<Model>();
      auto optimizer = make(*model);
      const auto step = [&](int number) {
        model->set_gradient(moved(comm->rank(), number));
        optimizer->step();
      };
      step(0);
      step(1);
      grow(*optimizer, *model);
      step(2);
      if (stops) {
        std::stringstream saved;
        torch::save(*optimizer, saved);
        auto next = std::make_unique<Model>();
        optimizer = make(*next);
        grow(*optimizer, *next);
        torch::load(*optimizer, saved);
        const at::NoGradGuard no_grad;
        next->a.copy_(model->a);
        next->b.copy_(model->b);
        model = std::move(next);
      }
      for (int number = 3; number < 8; ++number) step(number);
      return flat_of(optimizer->anchors());
    })[0];
  };
  EXPECT_TRUE(same_bits(run(true), run(false)));
}

TEST(Residuals, KeepTheirPartOfTheMeanWhenTheGroupChanges) {
  constexpr int before = 3;
  std::vector<codec::Residuals> all;
  Tensor mean = torch::zeros({12});
  for (int rank = 0; rank < before; ++rank) {
    all.push_back({eighths({12}, rank + 1), eighths({4}, rank + 11), 4 * rank, before, rank});
    mean += all[rank].own / before;
    mean.narrow(0, 4 * rank, 4) += all[rank].owner;
  }
  for (const int after : {3, 6}) {
    Tensor now = torch::zeros({12});
    for (int rank = 0; rank < before; ++rank) {
      codec::Residuals residuals = all[rank];
      residuals.follow(after, (rank + 1) % after);
      EXPECT_FALSE(residuals.owner.defined());
      now += residuals.own / after;
    }
    EXPECT_TRUE(torch::allclose(now, mean, 1e-6, 1e-6));
  }
  codec::Residuals same = all[1];
  same.follow(before, 1);
  EXPECT_TRUE(same_bits(same.own, all[1].own) && same_bits(same.owner, all[1].owner));
}

TEST(CodedRound, SendsWhatWasOwedWhenTheGroupHasShrunk) {
  // What three replicas lost of one round arrives when two of them go on: of the third, nobody knows.
  const auto three = gloo_group(3, std::chrono::seconds(60), 0), two = gloo_group(2, std::chrono::seconds(60), 0);
  const auto anchors = run_ranks(three, [&](std::shared_ptr<Communicator> comm) {
    Model model;
    DiLoCoOptimizer optimizer(torch::optim::SGD(model.all(), 1.0), comm,
                              averaging({.codec = codecs::int4(), .error_feedback = ErrorFeedback{}}));
    model.set_gradient(comm->rank() == 2 ? torch::zeros({numel}) : moved(comm->rank(), 0));
    optimizer.step();
    if (comm->rank() == 2) return Tensor();
    optimizer.reconnect(two[comm->rank()]);
    for (int round = 0; round < 60; ++round) {
      model.set_gradient(torch::zeros({numel}));
      optimizer.step();
    }
    return flat_of(optimizer.anchors());
  });
  EXPECT_TRUE(same_bits(anchors[0], anchors[1]));
  const Tensor all = -(moved(0, 0) + moved(1, 0)) / 3, owned_by_the_third = all.narrow(0, 2 * 1792, numel - 2 * 1792);
  EXPECT_LT(relative_error(anchors[0].narrow(0, 0, 2 * 1792), all.narrow(0, 0, 2 * 1792)), 1e-5);
  EXPECT_GT(relative_error(anchors[0].narrow(0, 2 * 1792, numel - 2 * 1792), owned_by_the_third), 1e-3);
}

}  // namespace
}  // namespace outerloop::testing::coded
