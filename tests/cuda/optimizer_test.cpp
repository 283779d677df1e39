#include <c10/cuda/CUDAEvent.h>
#include <torch/serialize.h>

#include <sstream>
#include <tuple>

#include "comm/staged.hpp"
#include "cuda/replicas.hpp"

// The optimizers on GPUs do what they do on the CPU, on the stream that is current.

namespace outerloop {
namespace {

using namespace testing;

// ---- the same bits as on the CPU ----

struct Case {
  std::string name;
  Plan plan;
};
std::ostream& operator<<(std::ostream& out, const Case& of) { return out << of.name; }

std::vector<Case> cases() {
  return {{"DiLoCo", {.reports = false}},
          {"DiLoCoKeepLocal", {.streaming = {.keep_local = 0.25}}},
          {"Streaming", {.streaming = {FragmentPlan::sequential(2), 1, 0.5}}},
          {"SeveralWindowsUnderWay", {.streaming = {FragmentPlan::whole(), 5, 0.5}, .steps = 10}},
          {"Eager", {.streaming = {.delay = 4, .keep_local = 0.25, .eager = true}, .reports = false, .steps = 11}},
          {"LocalSgd", {.diloco = false}}};
}

/// How far results may be apart that were summed in another order: a step of the parameter's type or two.
double tolerance(const Tensor& of) {
  const bool single = of.scalar_type() == at::kFloat || of.scalar_type() == at::kDouble;
  return single ? 1e-5 : of.scalar_type() == at::kHalf ? 4e-3 : 3e-2;
}

/// Three numbers have several sums: NCCL's order is its own, and Gloo's depends on the place in the wire, which is
/// another when a bucket is divided between devices.
void expect_same_but_for_order(const std::vector<Story>& stories, const std::vector<Story>& expected) {
  if (stories.size() == 2) return expect_same(stories, expected);
  for (const Story& story : stories) {
    EXPECT_TRUE(same_bits(story.anchors, stories[0].anchors));
    ASSERT_EQ(story.seen.size(), expected[0].seen.size());
    const size_t rank = &story - stories.data();
    for (size_t step = 0; step < story.seen.size(); ++step) {
      for (size_t i = 0; i < story.seen[step].size(); ++i) {
        const Tensor &a = story.seen[step][i], &b = expected[rank].seen[step][i];
        EXPECT_TRUE(torch::allclose(a, b, tolerance(a), tolerance(a)))
            << "parameter " << i << " of rank " << rank << " after step " << step + 1;
      }
    }
  }
}

class RoundsOnGpus : public ::testing::TestWithParam<std::tuple<Case, int>> {
 protected:
  static Plan plan() {
    Plan plan = std::get<0>(GetParam()).plan;
    plan.ranks = std::get<1>(GetParam());
    return plan;
  }
};
INSTANTIATE_TEST_SUITE_P(All, RoundsOnGpus, ::testing::Combine(::testing::ValuesIn(cases()), ::testing::Values(2, 3)),
                         [](const auto& info) {
                           return std::get<0>(info.param).name + "On" + std::to_string(std::get<1>(info.param));
                         });

TEST_P(RoundsOnGpus, OverGlooEqualThoseOnTheCpuBitForBit) {
  OUTERLOOP_NEEDS_GPUS(1);
  const auto expected = train(Place::cpu, Over::gloo, plan());
  expect_same(train(Place::gpu, Over::gloo, plan()), expected);
}

TEST_P(RoundsOnGpus, BesideParametersOnTheCpuEqualThoseOnTheCpu) {
  OUTERLOOP_NEEDS_GPUS(1);
  const auto expected = train(Place::cpu, Over::gloo, plan());
  expect_same_but_for_order(train(Place::both, Over::gloo, plan()), expected);
}

TEST_P(RoundsOnGpus, WithAnchorsOnTheCpuEqualThoseOnTheCpu) {
  OUTERLOOP_NEEDS_GPUS(1);
  Plan offloaded = plan();
  offloaded.sync.anchor_device = at::kCPU;
  const auto expected = train(Place::cpu, Over::gloo, plan());
  expect_same(train(Place::gpu, Over::gloo, offloaded), expected);
  expect_same_but_for_order(train(Place::both, Over::gloo, offloaded), expected);
}

TEST_P(RoundsOnGpus, OverNcclEqualThoseOnTheCpu) {
  OUTERLOOP_NEEDS_GPUS(plan().ranks);
  const auto expected = train(Place::cpu, Over::gloo, plan());
  expect_same_but_for_order(train(Place::gpu, Over::nccl, plan()), expected);
}

/// Parameters, or their anchors, on the CPU in a group over NCCL: these wires go by way of the GPU.
TEST_P(RoundsOnGpus, OfWiresOnTheCpuOverNcclEqualThoseOnTheCpu) {
  OUTERLOOP_NEEDS_GPUS(plan().ranks);
  Plan offloaded = plan();
  offloaded.sync.anchor_device = at::kCPU;
  const auto expected = train(Place::cpu, Over::gloo, plan());
  expect_same_but_for_order(train(Place::gpu, Over::nccl, offloaded), expected);
  expect_same_but_for_order(train(Place::both, Over::nccl, plan()), expected);
}

/// Codecs run on the CPU: with anchors there too, and by way of the GPU where the group is over NCCL.
TEST(CodecsOnGpus, WithAnchorsOnTheCpuEqualThoseOnTheCpu) {
  OUTERLOOP_NEEDS_GPUS(2);
  for (const auto& codec : {codecs::int8(16), codecs::top_k(0.1, 8)}) {
    for (const Streaming& streaming : {Streaming{.keep_local = 0.25}, Streaming{FragmentPlan::sequential(2), 1, 0.5}}) {
      Plan plan{.streaming = streaming, .sync = {.codec = codec, .error_feedback = ErrorFeedback{.decay = 0.9}}};
      const auto expected = train(Place::cpu, Over::gloo, plan);
      plan.sync.anchor_device = at::kCPU;
      expect_same(train(Place::gpu, Over::gloo, plan), expected);
      expect_same(train(Place::gpu, Over::nccl, plan), expected);
    }
  }
}

TEST(CodecsOnGpus, WithAnchorsThereAreRefused) {
  OUTERLOOP_NEEDS_GPUS(1);
  EXPECT_THROW(train(Place::gpu, Over::gloo, {.sync = {.codec = codecs::int8()}}), std::exception);
}

// ---- rounds that do not commit ----

TEST(AbortsOnGpus, OfANonFiniteDeltaAreThoseOnTheCpu) {
  OUTERLOOP_NEEDS_GPUS(1);
  for (const OnAbort on_abort : {OnAbort::rollback, OnAbort::keep_local}) {
    const Plan plan{.sync = {.on_abort = on_abort}, .nan_at = 4};
    const auto expected = train(Place::cpu, Over::gloo, plan);
    ASSERT_EQ(expected[0].reports.size(), 3u);
    ASSERT_EQ(expected[0].reports[1].outcome, Outcome::aborted);
    Plan offloaded = plan;
    offloaded.sync.anchor_device = at::kCPU;
    expect_same(train(Place::gpu, Over::gloo, plan), expected);
    expect_same(train(Place::both, Over::gloo, plan), expected);
    expect_same(train(Place::gpu, Over::gloo, offloaded), expected);
  }
}

TEST(AbortsOnGpus, OverNcclAreThoseOnTheCpu) {
  OUTERLOOP_NEEDS_GPUS(2);
  const Plan plan{.nan_at = 4};
  expect_same(train(Place::gpu, Over::nccl, plan), train(Place::cpu, Over::gloo, plan));
}

/// Start::trust: every rank begins with its own anchor, and all take that of rank 0 at the first round.
TEST(RepairsOnGpus, AreThoseOnTheCpu) {
  OUTERLOOP_NEEDS_GPUS(1);
  const Plan plan{.sync = {.start = Start::trust}};
  const auto expected = train(Place::cpu, Over::gloo, plan);
  ASSERT_NE(expected[0].reports.at(0).reason, "");
  Plan offloaded = plan;
  offloaded.sync.anchor_device = at::kCPU;
  expect_same(train(Place::gpu, Over::gloo, plan), expected);
  expect_same(train(Place::both, Over::gloo, plan), expected);
  expect_same(train(Place::gpu, Over::gloo, offloaded), expected);
}

// ---- streams ----

/// Makes what the current stream is given next come after what it was given on `other`.
void follow(c10::cuda::CUDAStream other) {
  at::cuda::CUDAEvent event;
  event.record(other);
  event.block(c10::cuda::getCurrentCUDAStream());
}

std::vector<Story> train_on_another_stream(const Plan& plan) {
  return on_group(plan.ranks, Over::gloo, [&](const std::shared_ptr<Communicator>& comm) {
    Story story;
    const std::vector<Tensor> params = model(Place::gpu, comm->rank());
    const auto optimizer = optimizer_of(params, comm, plan);
    for (int64_t step = 1; step <= plan.steps; ++step) {
      const auto before = c10::cuda::getCurrentCUDAStream();
      const c10::cuda::CUDAStreamGuard on_its_own(c10::cuda::getStreamFromPool());
      follow(before);
      optimizer->step();
      story.seen.push_back(forward(params));
      c10::cuda::getCurrentCUDAStream().synchronize();
    }
    story.anchors = on_cpu(optimizer->anchors());
    return story;
  });
}

TEST(StreamsOnGpus, OfARoundIsTheOneThatIsCurrentThen) {
  OUTERLOOP_NEEDS_GPUS(1);
  for (const bool offloaded : {false, true}) {
    Plan plan{.reports = false};
    const auto expected = train(Place::cpu, Over::gloo, plan);
    if (offloaded) plan.sync.anchor_device = at::kCPU;
    expect_same(train_on_another_stream(plan), expected);
  }
}

/// The optimizer goes while its last round is still under way, on another stream than it was made on.
TEST(StreamsOnGpus, OfARoundKeepsTheMemoryItNeeds) {
  OUTERLOOP_NEEDS_GPUS(1);
  const Plan plan{.reports = false};
  const auto expected = train(Place::cpu, Over::gloo, plan);
  for (const bool offloaded : {false, true}) {
    const auto stories = on_group(plan.ranks, Over::gloo, [&](const std::shared_ptr<Communicator>& comm) {
      Plan mine = plan;
      if (offloaded) mine.sync.anchor_device = at::kCPU;
      Story story;
      const auto made_on = c10::cuda::getCurrentCUDAStream();
      const std::vector<Tensor> params = model(Place::gpu, comm->rank());
      auto optimizer = optimizer_of(params, comm, mine);
      made_on.synchronize();
      const auto trained_on = c10::cuda::getStreamFromPool();
      {
        const c10::cuda::CUDAStreamGuard guard(trained_on);
        for (int64_t step = 1; step <= plan.steps; ++step) {
          optimizer->step();
          story.seen.push_back(forward(params));
        }
      }
      optimizer.reset();
      for (int i = 0; i < 20; ++i) {  // what was the optimizer's on the GPU may now be these
        for (const int64_t numel : {129 + 4, 1001 + 35 + 99 + 1, 64 * 1024}) {
          torch::zeros({numel}, at::TensorOptions(at::kFloat).device(gpu(comm->rank())));
        }
      }
      made_on.synchronize();
      trained_on.synchronize();
      story.anchors = expected[comm->rank()].anchors;
      return story;
    });
    expect_same(stories, expected);
  }
}

// ---- the stages by themselves ----

struct Recipe {
  std::vector<Tensor> results;
  DeltaSummary summary;
  uint64_t print;
};

/// A user's own recipe, with flat vectors beside the parameters or on the CPU.
Recipe stages(at::Device of_params, at::Device of_state) {
  const auto values = [](int step, size_t index, at::ScalarType type) {
    return scripted_values({1001}, type, 0, step, index);
  };
  std::vector<Tensor> tensors;
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    tensors.push_back(values(0, tensors.size(), type).to(of_params));
  }
  FlatParams params(tensors);
  const Tensor anchor = scripted_values({params.numel()}, at::kFloat, 0, 1, 0).to(of_state),
               velocity = scripted_values({params.numel()}, at::kFloat, 0, 1, 1).to(of_state);
  const Tensor gathered = params.gather(), delta = pseudogradient(anchor, params);
  Recipe all{on_cpu({gathered, delta}), summarize(delta), fingerprint(anchor)};
  average_step(anchor, delta);
  nesterov_step(anchor, velocity, delta, 0.7, 0.9);
  for (const double keep_local : {0.25, 0.0}) {
    params.scatter(anchor, keep_local);
    for (const Tensor& tensor : on_cpu({anchor, velocity, tensors[0], tensors[1], tensors[2]})) {
      all.results.push_back(tensor);
    }
  }
  return all;
}

TEST(StagesOnGpus, EqualThoseOnTheCpuBitForBit) {
  OUTERLOOP_NEEDS_GPUS(1);
  const Recipe expected = stages(at::kCPU, at::kCPU);
  on_ranks(1, [&](int) {
    for (const at::Device of_state : {gpu(0), at::Device(at::kCPU)}) {
      const Recipe all = stages(gpu(0), of_state);
      EXPECT_TRUE(same_bits(all.results, expected.results)) << of_state;
      EXPECT_NEAR(all.summary.norm, expected.summary.norm, 1e-9 * expected.summary.norm) << of_state;
      EXPECT_EQ(all.summary.non_finite, 0) << of_state;
      EXPECT_EQ(all.print, expected.print) << of_state;
    }
  });
}

// ---- checkpoints ----

std::string saved(const OuterLoopOptimizer& optimizer) {
  std::ostringstream stream;
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  archive.save_to(stream);
  return stream.str();
}
void load(OuterLoopOptimizer& optimizer, const std::string& file) {
  std::istringstream stream(file);
  torch::serialize::InputArchive archive;
  archive.load_from(stream);
  optimizer.load(archive);
}

/// Stops after three steps, in the middle of a window, and goes on with another optimizer on other parameters.
Story train_with_a_stop(const std::shared_ptr<Communicator>& comm, Place from, Place to, Plan plan) {
  Story story;
  plan.sync.on_sync = [&](const SyncReport& report) { story.reports.push_back(report); };
  std::string file;
  std::vector<Tensor> values;
  const auto run = [&](OuterLoopOptimizer& optimizer, const std::vector<Tensor>& params, int64_t until) {
    while (optimizer.local_steps() < until) {
      optimizer.step();
      story.seen.push_back(forward(params));
    }
  };
  {
    const std::vector<Tensor> params = model(from, comm->rank());
    const auto optimizer = optimizer_of(params, comm, plan);
    run(*optimizer, params, 3);
    file = saved(*optimizer);
    values = on_cpu(params);
  }
  const std::vector<Tensor> params = model(to, comm->rank());
  const auto optimizer = optimizer_of(params, comm, plan);
  for (size_t i = 0; i < params.size(); ++i) params[i].detach().copy_(values[i]);
  load(*optimizer, file);
  run(*optimizer, params, plan.steps);
  story.anchors = on_cpu(optimizer->anchors());
  wait_for_stream();
  return story;
}

TEST(CheckpointsOnGpus, ContinueBitForBitThereAndOnTheCpu) {
  OUTERLOOP_NEEDS_GPUS(1);
  const Plan plan;
  const auto expected = train(Place::cpu, Over::gloo, plan);
  for (const auto& [from, to] : {std::pair(Place::gpu, Place::gpu), std::pair(Place::gpu, Place::cpu),
                                 std::pair(Place::cpu, Place::gpu), std::pair(Place::both, Place::both)}) {
    expect_same(on_group(plan.ranks, Over::gloo,
                         [&, from = from, to = to](const std::shared_ptr<Communicator>& comm) {
                           return train_with_a_stop(comm, from, to, plan);
                         }),
                expected);
  }
}

// ---- long vectors cross in chunks ----

constexpr int64_t three_chunks = 2 * kernels::staged_chunk + 5;

TEST(ChunksOnGpus, OfAWireOverGlooAreSummedAndSent) {
  OUTERLOOP_NEEDS_GPUS(1);
  on_group(2, Over::gloo, [](const std::shared_ptr<Communicator>& comm) {
    comm::Staged staged(*comm, gpu(comm->rank()));
    const Tensor mine = normal({three_chunks}, comm->rank()), other = normal({three_chunks}, 1 - comm->rank());
    const Tensor pinned = mine.pin_memory(), flat = torch::empty_like(mine, at::TensorOptions(gpu(comm->rank())));
    for (int again = 0; again < 2; ++again) {
      flat.copy_(pinned, /*non_blocking=*/true);
      staged.all_reduce_sum(flat).wait();
      EXPECT_TRUE(same_bits(flat.cpu(), mine + other));
    }
    flat.copy_(pinned, /*non_blocking=*/true);
    staged.broadcast(flat, 1).wait();
    EXPECT_TRUE(same_bits(flat.cpu(), comm->rank() == 1 ? mine : other));
    return 0;
  });
}

TEST(ChunksOnGpus, OfAWireOnTheCpuOverNcclAreSummedAndSent) {
  OUTERLOOP_NEEDS_GPUS(2);
  on_group(2, Over::nccl, [](const std::shared_ptr<Communicator>& comm) {
    comm::Staged staged(*comm, at::kCPU);
    const Tensor mine = normal({three_chunks}, comm->rank()), other = normal({three_chunks}, 1 - comm->rank());
    const Tensor flat = mine.pin_memory();
    for (int again = 0; again < 2; ++again) {
      flat.copy_(mine);
      staged.all_reduce_sum(flat).wait();
      EXPECT_TRUE(same_bits(flat, mine + other));
    }
    flat.copy_(mine);
    staged.broadcast(flat, 1).wait();
    EXPECT_TRUE(same_bits(flat, comm->rank() == 1 ? mine : other));
    return 0;
  });
}

/// Types in one buffer, and chunks that begin within a parameter. The third takes the buffer of the first: with
/// keep_local 0 nothing is copied into it before, and it is the host that must wait until the GPU has the first.
TEST(ChunksOnGpus, OfParametersWithAnchorsOnTheCpuEqualRoundsOnTheCpuBitForBit) {
  OUTERLOOP_NEEDS_GPUS(1);
  const auto train_long = [](bool on_gpu, double keep_local) {
    const auto device = on_gpu ? gpu(0) : at::Device(at::kCPU);
    std::vector<Tensor> params;
    for (const auto& [numel, type] : {std::pair(kernels::staged_chunk - 3, at::kBFloat16), std::pair(3L, at::kHalf),
                                      std::pair(kernels::staged_chunk + 77, at::kFloat)}) {
      params.push_back(scripted_values({numel}, type, 0, 0, params.size()).to(device).set_requires_grad(true));
    }
    DiLoCoOptimizer optimizer(
        std::make_unique<Scripted>(params, 0), connect_alone(),
        {.sync_every = 1, .streaming = {.keep_local = keep_local}, .sync = {.anchor_device = at::kCPU}});
    std::vector<Tensor> seen;
    for (int step = 1; step <= 2; ++step) {
      optimizer.step();
      for (const Tensor& param : forward(params)) seen.push_back(param);
    }
    if (on_gpu) wait_for_stream();
    return seen;
  };
  for (const double keep_local : {0.5, 0.0}) {
    const auto expected = train_long(false, keep_local);
    on_ranks(1, [&](int) { EXPECT_TRUE(same_bits(train_long(true, keep_local), expected)) << keep_local; });
  }
}

}  // namespace
}  // namespace outerloop
