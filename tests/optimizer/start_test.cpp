#include <outerloop/outerloop.hpp>

#include "optimizer/models.hpp"
#include "optimizer/thrown.hpp"
#include "support/faults.hpp"
#include "support/ranks.hpp"

/// The handshake at construction: replicas that differ get a ConsistencyError on every rank, naming the difference.

namespace outerloop::testing {
namespace {

using torch::optim::SGD;

/// What one replica brings along.
struct Replica {
  std::vector<Tensor> params{eighths({3}, 0), eighths({2, 2}, 1)};
  DiLoCoOptions options{};
};
struct Difference {
  std::string name;
  std::function<void(Replica&)> change;
  std::vector<std::string> says;
};
std::ostream& operator<<(std::ostream& out, const Difference& difference) { return out << difference.name; }

std::vector<Difference> differences() {
  return {
      {"SyncEvery", [](Replica& r) { r.options.sync_every = 7; }, {"sync_every", "100", "7"}},
      {"OuterLr", [](Replica& r) { r.options.outer_lr = 0.625; }, {"0.625"}},
      {"OuterMomentum", [](Replica& r) { r.options.outer_momentum = 0.5; }, {"momentum", "0.5"}},
      {"Nesterov", [](Replica& r) { r.options.nesterov = false; }, {"nesterov"}},
      {"KeepLocal", [](Replica& r) { r.options.streaming.keep_local = 0.25; }, {"keep_local", "0.25"}},
      {"Start", [](Replica& r) { r.options.sync.start = Start::verify; }, {"start"}},
      {"OnAbort", [](Replica& r) { r.options.sync.on_abort = OnAbort::keep_local; }, {"on_abort"}},
      {"OnMismatch", [](Replica& r) { r.options.sync.on_mismatch = OnMismatch::fail; }, {"on_mismatch"}},
      {"MoreParameters", [](Replica& r) { r.params.push_back(eighths({5}, 0)); }, {"parameters", "2", "3"}},
      {"FewerParameters", [](Replica& r) { r.params.pop_back(); }, {"parameters", "2", "1"}},
      {"Shape",
       [](Replica& r) {
         r.params[1] = eighths({2, 3}, 0);
       },
       {"parameter 1", "[2, 2]", "[2, 3]"}},
      {"ShapeOfTheSameSize",
       [](Replica& r) {
         r.params[1] = eighths({4, 1}, 0);
       },
       {"parameter 1", "[2, 2]", "[4, 1]"}},
      {"Order", [](Replica& r) { std::swap(r.params[0], r.params[1]); }, {"parameter 0", "[3]", "[2, 2]"}},
      {"Type", [](Replica& r) { r.params[0] = r.params[0].to(at::kBFloat16); }, {"parameter 0", "BFloat16"}},
      {"Float64", [](Replica& r) { r.params[1] = r.params[1].to(at::kDouble); }, {"parameter 1", "Double"}},
      {"Name",
       [](Replica& r) {
         r.options.sync.names = {"a", "other"};
       },
       {"parameter 1", "'b'", "'other'"}},
  };
}

class Handshake : public ::testing::TestWithParam<Difference> {};
INSTANTIATE_TEST_SUITE_P(All, Handshake, ::testing::ValuesIn(differences()),
                         [](const auto& info) { return info.param.name; });

TEST_P(Handshake, DifferenceIsAConsistencyErrorOnEveryRank) {
  for (const auto& [size, odd] : {std::pair{2, 0}, {2, 1}, {3, 2}}) {
    const auto group = gloo_group(size);
    const auto thrown = run_ranks(group, [odd = odd](std::shared_ptr<Communicator> comm) {
      Replica replica;
      replica.options.sync.names = {"a", "b"};
      if (comm->rank() == odd) GetParam().change(replica);
      if (replica.params.size() != 2) replica.options.sync.names.clear();
      for (Tensor& param : replica.params) param.set_requires_grad(true);
      const auto before = copies(replica.params);
      const Thrown error = thrown_by([&] { DiLoCoOptimizer(SGD(replica.params, 0.5), comm, replica.options); });
      EXPECT_TRUE(same_bits(replica.params, before));
      return error;
    });
    for (int rank = 0; rank < size; ++rank) {
      EXPECT_TRUE(is(thrown[rank], "ConsistencyError", GetParam().says)) << "rank " << rank << ", odd one " << odd;
      EXPECT_TRUE(is(thrown[rank], "ConsistencyError", {"rank " + std::to_string(odd)})) << "rank " << rank;
    }
    run_ranks(group, [](std::shared_ptr<Communicator> comm) {  // the group is still usable
      DiLoCoOptimizer(SGD({leaf(eighths({3}, 0))}, 0.5), comm);
    });
  }
}

TEST(HandshakeOf, DifferentRulesIsAConsistencyErrorOnEveryRank) {
  const auto thrown = run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    return thrown_by([&] {
      SGD inner({leaf(eighths({3}, 0))}, 0.5);
      if (comm->rank() == 0) LocalSGDOptimizer(std::move(inner), comm, {.sync_every = 4});
      if (comm->rank() == 1) DiLoCoOptimizer(std::move(inner), comm, {.sync_every = 4});
    });
  });
  for (const Thrown& error : thrown) EXPECT_TRUE(is(error, "ConsistencyError", {"Average", "Nesterov"}));
}

TEST(HandshakeOf, KeepLocalComparesEveryDigit) {
  const auto thrown = run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    const double keep_local = comm->rank() == 0 ? 0.3 : std::nextafter(0.3, 1);
    return thrown_by(
        [&] { DiLoCoOptimizer(SGD({leaf(eighths({3}, 0))}, 0.5), comm, {.streaming = {.keep_local = keep_local}}); });
  });
  for (const Thrown& error : thrown) EXPECT_TRUE(is(error, "ConsistencyError", {"keep_local"}));
}

TEST(HandshakeOf, AParameterFrozenOnOneRankIsAConsistencyErrorOnEveryRank) {
  const auto thrown = run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    return thrown_by([&] {
      const auto a = leaf(eighths({3}, 0)), b = leaf(eighths({3}, 0));
      if (comm->rank() == 1) b.set_requires_grad(false);
      LocalSGDOptimizer(SGD({a, b}, 0.5), comm);
    });
  });
  for (const Thrown& error : thrown) EXPECT_TRUE(is(error, "ConsistencyError", {"parameter 1"}));
}

/// Parameters that differ between ranks, of every type and layout.
std::vector<Tensor> different(int rank) {
  std::vector<Tensor> params;
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    params.push_back(leaf(eighths({3, 4}, rank + static_cast<int64_t>(params.size())).to(dtype)));
  }
  params.push_back(leaf(eighths({4, 3}, rank).t()));
  params.push_back(leaf(torch::empty({0})));
  return params;
}

TEST(Start, BroadcastGivesAllRanksTheParametersOfRankZero) {
  run_ranks(3, [](std::shared_ptr<Communicator> comm) {
    const auto params = different(comm->rank());
    const Tensor stale = params[0].square().sum();
    const LocalSGDOptimizer optimizer(SGD(params, 0.5), comm);
    EXPECT_TRUE(same_bits(params, copies(different(0))));
    for (size_t i = 0; i < params.size(); ++i) {
      EXPECT_TRUE(same_bits(optimizer.anchors()[i].to(params[i].scalar_type()), params[i]));
    }
    if (comm->rank() == 0) return;
    EXPECT_TRUE(is(thrown_by([&] { stale.backward(); }), "c10::Error", {"inplace"}));
  });
}

TEST(Start, VerifyAcceptsEqualParametersAndCopiesNone) {
  run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    const auto tapped = std::make_shared<Tapped>(comm);
    const auto params = different(5);
    LocalSGDOptimizer(SGD(params, 0.5), tapped, {.sync = {.start = Start::verify}});
    EXPECT_TRUE(same_bits(params, copies(different(5))));
    for (const auto& call : tapped->calls) EXPECT_NE(call.name, "broadcast");
  });
}

TEST(Start, VerifyThrowsOnEveryRankIfOneBitDiffersOnOne) {
  for (const int odd : {0, 1, 2}) {
    const auto thrown = run_ranks(3, [odd](std::shared_ptr<Communicator> comm) {
      const auto a = leaf(eighths({3}, 0)), b = leaf(torch::zeros({50}));
      at::NoGradGuard no_grad;
      if (comm->rank() == odd) b[49] = -0.0F;
      return thrown_by([&] { LocalSGDOptimizer(SGD({a, b}, 0.5), comm, {.sync = {.start = Start::verify}}); });
    });
    for (const Thrown& error : thrown) EXPECT_TRUE(is(error, "ConsistencyError", {"rank"})) << "odd one " << odd;
  }
}

TEST(Start, TrustLooksAtNoValues) {
  run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    const auto params = different(comm->rank());
    const LocalSGDOptimizer optimizer(SGD(params, 0.5), comm, {.sync = {.start = Start::trust}});
    EXPECT_TRUE(same_bits(params, copies(different(comm->rank()))));
  });
}

TEST(Start, TrustStillComparesOptionsAndShapes) {
  const auto thrown = run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    return thrown_by([&] {
      LocalSGDOptimizer(SGD({leaf(eighths({3 + comm->rank()}, 0))}, 0.5), comm, {.sync = {.start = Start::trust}});
    });
  });
  for (const Thrown& error : thrown) EXPECT_TRUE(is(error, "ConsistencyError", {"parameter 0", "[3]", "[4]"}));
}

}  // namespace
}  // namespace outerloop::testing
