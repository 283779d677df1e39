#include <gtest/gtest.h>

#include <outerloop/outerloop.hpp>

#include "support/ranks.hpp"
#include "support/tensors.hpp"

// Every collective of a Communicator against sums in double, on groups of 1 to 5 and sizes that do not divide by them.

namespace outerloop {
namespace {

using testing::run_ranks;

constexpr int64_t sizes[] = {0, 1, 2, 3, 7, 64, 1009, 40'961};

uint64_t seed(int rank, int64_t numel) { return 1000 * numel + rank; }

class Collectives : public ::testing::TestWithParam<int> {
 protected:
  const int ranks = GetParam();
  Tensor sum_in_double(int64_t numel) const {
    Tensor sum = torch::zeros({numel}, at::kDouble);
    for (int rank = 0; rank < ranks; ++rank) sum += testing::normal({numel}, seed(rank, numel));
    return sum;
  }
};

TEST_P(Collectives, AllReduceSums) {
  run_ranks(ranks, [&](std::shared_ptr<Communicator> comm) {
    EXPECT_EQ(comm->size(), ranks);
    for (const int64_t numel : sizes) {
      const Tensor single = testing::normal({numel}, seed(comm->rank(), numel)), twice = single.to(at::kDouble);
      comm->all_reduce_sum(single).wait();
      comm->all_reduce_sum(twice).wait();
      EXPECT_TRUE(torch::allclose(single.to(at::kDouble), sum_in_double(numel), 1e-6, 2e-6)) << numel;
      EXPECT_TRUE(torch::allclose(twice, sum_in_double(numel), 1e-14, 1e-14)) << numel;
    }
  });
}

TEST_P(Collectives, AllReduceGivesTheSameBitsOnAllRanks) {
  const auto sums = run_ranks(ranks, [](std::shared_ptr<Communicator> comm) {
    const Tensor flat = testing::normal({1009}, 1 + comm->rank());
    comm->all_reduce_sum(flat).wait();
    return flat;
  });
  for (const Tensor& sum : sums) EXPECT_TRUE(testing::same_bits(sum, sums[0]));
}

TEST_P(Collectives, AllGatherFillsTheRowsByRank) {
  run_ranks(ranks, [&](std::shared_ptr<Communicator> comm) {
    for (const int64_t numel : sizes) {
      const Tensor rows = torch::full({ranks, numel}, -1.0f);
      comm->all_gather(rows, testing::normal({numel}, seed(comm->rank(), numel))).wait();
      for (int rank = 0; rank < ranks; ++rank) {
        EXPECT_TRUE(testing::same_bits(rows[rank], testing::normal({numel}, seed(rank, numel)))) << numel;
      }
    }
  });
}

TEST_P(Collectives, AllGatherTakesBytes) {
  run_ranks(ranks, [&](std::shared_ptr<Communicator> comm) {
    const Tensor rows = torch::zeros({ranks, 7}, at::kByte);
    comm->all_gather(rows, torch::full({7}, 200 + comm->rank(), at::kByte)).wait();
    for (int rank = 0; rank < ranks; ++rank) {
      EXPECT_TRUE(torch::equal(rows[rank], torch::full({7}, 200 + rank, at::kByte)));
    }
  });
}

TEST_P(Collectives, AllToAllTurnsRowsIntoColumns) {
  run_ranks(ranks, [&](std::shared_ptr<Communicator> comm) {
    const auto row = [](int from, int to, int64_t numel) {
      return testing::normal({numel}, seed(10 * from + to, numel));
    };
    for (const int64_t numel : sizes) {
      Tensor in = torch::empty({ranks, numel}), out = torch::full({ranks, numel}, -1.0f);
      for (int to = 0; to < ranks; ++to) in[to].copy_(row(comm->rank(), to, numel));
      comm->all_to_all(out, in).wait();
      for (int from = 0; from < ranks; ++from) {
        EXPECT_TRUE(testing::same_bits(out[from], row(from, comm->rank(), numel))) << numel;
      }
    }
    const Tensor bytes = torch::full({3 * ranks}, comm->rank(), at::kByte), got = torch::zeros_like(bytes);
    comm->all_to_all(got, bytes).wait();
    EXPECT_EQ(got[3 * (ranks - 1)].item<int>(), ranks - 1);
  });
}

TEST_P(Collectives, AllToAllRefusesRowsThatDoNotFit) {
  if (ranks == 1) return;  // a group of one takes what it is given
  run_ranks(ranks, [&](std::shared_ptr<Communicator> comm) {
    const Tensor in = torch::zeros({ranks, 2});
    EXPECT_THROW(comm->all_to_all(torch::zeros({ranks, 3}), in), c10::Error);
    EXPECT_THROW(comm->all_to_all(torch::zeros({ranks, 2}, at::kDouble), in), c10::Error);
    EXPECT_THROW(comm->all_to_all(torch::zeros({ranks + 1}), torch::zeros({ranks + 1})), c10::Error);
  });
}

TEST_P(Collectives, BroadcastTakesFromTheRoot) {
  run_ranks(ranks, [&](std::shared_ptr<Communicator> comm) {
    for (int root = 0; root < ranks; ++root) {
      for (const int64_t numel : sizes) {
        const Tensor flat = testing::normal({numel}, seed(comm->rank(), numel));
        comm->broadcast(flat, root).wait();
        EXPECT_TRUE(testing::same_bits(flat, testing::normal({numel}, seed(root, numel)))) << numel;
      }
    }
  });
}

TEST_P(Collectives, MayBeInFlightTogether) {
  run_ranks(ranks, [&](std::shared_ptr<Communicator> comm) {
    std::vector<Tensor> flats;
    std::vector<Pending> pending;
    for (const int64_t numel : sizes) {
      flats.push_back(torch::full({numel}, static_cast<float>(comm->rank() + numel)));
      pending.push_back(comm->all_reduce_sum(flats.back()));
    }
    for (auto last = pending.rbegin(); last != pending.rend(); ++last) last->wait();
    for (const Tensor& flat : flats) {
      const auto expected = static_cast<float>(ranks * (ranks - 1) / 2 + ranks * flat.numel());
      EXPECT_TRUE(torch::equal(flat, torch::full_like(flat, expected)));
    }
  });
}

TEST_P(Collectives, MeanAcrossDividesTheSum) {
  run_ranks(ranks, [&](std::shared_ptr<Communicator> comm) {
    for (const int64_t numel : sizes) {
      const Tensor single = testing::normal({numel}, seed(comm->rank(), numel)), twice = single.to(at::kDouble);
      mean_across(*comm, single).wait();
      mean_across(*comm, twice).wait();
      const Tensor mean = sum_in_double(numel) / ranks;
      EXPECT_TRUE(torch::allclose(single.to(at::kDouble), mean, 1e-6, 1e-6)) << numel;
      EXPECT_TRUE(torch::allclose(twice, mean, 1e-14, 1e-14)) << numel;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Gloo, Collectives, ::testing::Range(1, 6),
                         [](const auto& info) { return std::to_string(info.param) + "Ranks"; });

TEST(MeanAcross, KeepsShapeAndTypeOfABuffer) {
  run_ranks(4, [](std::shared_ptr<Communicator> comm) {
    const Tensor running_mean = torch::full({2, 3}, comm->rank(), at::kBFloat16);
    mean_across(*comm, running_mean).wait();
    EXPECT_TRUE(torch::equal(running_mean, torch::full({2, 3}, 1.5, at::kBFloat16)));
  });
}

TEST(MeanAcross, RefusesIntegers) {
  EXPECT_THROW(mean_across(*connect_alone(), torch::ones({2}, at::kLong)).wait(), c10::Error);
}

TEST(Collective, RefusesWhatWouldBreakTheGroup) {
  run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    const Tensor flat = torch::ones({4});
    EXPECT_THROW(comm->all_reduce_sum(torch::ones({4, 4}).t()).wait(), c10::Error);
    EXPECT_THROW(comm->all_reduce_sum(Tensor()).wait(), c10::Error);
    EXPECT_THROW(comm->all_gather(torch::ones({2, 3}), flat).wait(), c10::Error);
    EXPECT_THROW(comm->all_gather(torch::ones({2, 4}, at::kDouble), flat).wait(), c10::Error);
    EXPECT_THROW(comm->broadcast(flat, 2).wait(), c10::Error);
    EXPECT_THROW(comm->broadcast(flat, -1).wait(), c10::Error);
    comm->all_reduce_sum(flat).wait();  // nothing has been sent so far
    EXPECT_TRUE(torch::equal(flat, torch::full({4}, 2.0f)));
  });
}

TEST(Collective, TakesLeavesThatRequireGrad) {
  run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    const Tensor leaf = torch::ones({4}).set_requires_grad(true);
    comm->all_reduce_sum(leaf).wait();
    EXPECT_TRUE(torch::equal(leaf.detach(), torch::full({4}, 2.0f)));
    EXPECT_TRUE(leaf.is_leaf());
  });
}

TEST(AllReduceBytes, AreThoseOfARing) {
  EXPECT_EQ(all_reduce_bytes(1200, 1), 0);
  EXPECT_EQ(all_reduce_bytes(1200, 2), 1200);
  EXPECT_EQ(all_reduce_bytes(1200, 3), 1600);
  EXPECT_EQ(all_reduce_bytes(1200, 4), 1800);
  EXPECT_EQ(all_reduce_bytes(1'000'000'000'000'000'003, 2), 1'000'000'000'000'000'003);
}

}  // namespace
}  // namespace outerloop
