// How fast are send, apply and the outer step on a GPU, the network left out, against a copy and what ATen offers?

#include <ATen/core/grad_mode.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/types.h>

#include <chrono>
#include <cstdio>
#include <memory>

#include "options.hpp"
#include "problem.hpp"
#include "timing.hpp"
#include "verdict.hpp"

namespace outerloop::bench {
namespace {

using Clock = std::chrono::steady_clock;
using Body = void (Problem::*)();

/// What is timed, and the bytes that it moves.
struct Entry {
  const char* name;
  double float32_bytes, bfloat16_bytes;  ///< per element; 0: left out with parameters of this type
  Body body;
};
constexpr Entry ours[] = {
    {"copy", 8, 8, &Problem::copy},
    {"send", 12, 10, &Problem::send},
    {"apply", 24, 22, &Problem::apply},
    {"outer step", 36, 32, &Problem::outer_step},
};
// With bfloat16 parameters the first two would keep the anchor in bfloat16 as well, which is another outer step.
constexpr Entry baselines[] = {
    {"SGD chain", 80, 0, &Problem::chain},
    {"torchft's passes", 108, 0, &Problem::torchft},
    {"composition", 40, 36, &Problem::composition},
};

/// Times as fast as a baseline that the outer step ought to be; 0: no target.
double target(const std::string& baseline, const Case& size) {
  if (baseline == "SGD chain") return size.numel >= 1'000'000'000 ? 2.2 : size.numel <= 10'000'000 ? 10 : 0;
  if (baseline == "torchft's passes") return size.numel >= 1'000'000'000 ? 3 : 0;
  return 0;
}

double bytes_of(const Entry& entry, at::ScalarType type) {
  return type == at::kFloat ? entry.float32_bytes : entry.bfloat16_bytes;
}

/// Two rounds of everything that is timed, compared with the CPU. Ours must be equal to the bit; the baselines round
/// otherwise, and with bfloat16 parameters take in the rounding of the anchor, which ours leaves out of the delta.
bool verify(Problem& problem, at::ScalarType type, bool ours_only) {
  const Expected expected = Expected(type).to(at::kCUDA);
  bool all = true;
  const auto check = [&](const char* name, Body body, double tolerance) {
    problem.reset();
    (problem.*body)();
    problem.inner_steps(1);
    (problem.*body)();
    const bool agrees = problem.agrees(expected, tolerance, ours_only);
    if (!agrees) std::printf("  %s: WRONG RESULT\n", name);
    all = all && agrees;
  };
  check("send and apply", &Problem::send_and_apply, 0);
  check("outer step", &Problem::outer_step, 0);
  if (!ours_only) {
    for (const Entry& entry : baselines) {
      if (bytes_of(entry, type) > 0) check(entry.name, entry.body, type == at::kFloat ? 2e-6 : 1.0 / 128);
    }
  }
  problem.reset();
  return all;
}

void print(const std::vector<Contender>& contenders, const Case& size, bool verified) {
  const double copy_rate = contenders[0].bytes / contenders[0].median(), outer_step = contenders[3].median();
  for (const Contender& c : contenders) {
    const double rate = c.bytes / c.median(), percent = 100 * rate / copy_rate;
    std::printf("  %-17s %9.4f ms %8.1f GB/s %4.0f %% of copy", c.name.c_str(), c.median() * 1e3, rate / 1e9, percent);
    if (c.name == "send" || c.name == "apply") std::printf("  (target 90: %s)", verdict(percent >= 90));
    if (&c > &contenders[3]) {
      const double ratio = c.median() / outer_step, wanted = target(c.name, size);
      std::printf("  the outer step is %.2f x as fast", ratio);
      if (wanted > 0) std::printf(" (target %g: %s)", wanted, verdict(ratio >= wanted));
    }
    std::printf("\n");
  }
  std::printf("  results: %s\n", verified ? "as on the CPU" : "WRONG");
}

/// Whether all results were right.
bool measure(const Case& size, at::ScalarType type, const Options& options) {
  const double bytes = static_cast<double>(size.numel) * (12 + (type == at::kFloat ? 4 : 2));
  const auto count = static_cast<int64_t>(std::max(1.0, std::ceil(options.working_set / bytes)));
  std::printf("%s, %lld elements in %lld tensors, %lld times in memory\n", type == at::kFloat ? "float32" : "bfloat16",
              static_cast<long long>(size.numel), static_cast<long long>(size.tensors), static_cast<long long>(count));
  size_t free = 0, all = 0;
  OUTERLOOP_CUDA_CHECK(cudaMemGetInfo(&free, &all));
  // The baselines keep a velocity of their own and make copies of two vectors.
  const double needed =
      static_cast<double>(count) * bytes + static_cast<double>(size.numel) * (options.ours_only ? 0 : 16);
  if (needed > static_cast<double>(free)) {
    std::printf("  skipped: needs %.1f GB of device memory, %.1f are free\n", needed / 1e9,
                static_cast<double>(free) / 1e9);
    return true;
  }

  const Numbers numbers(type, at::kCUDA);
  std::vector<std::unique_ptr<Problem>> problems;
  for (int64_t i = 0; i < count; ++i) problems.push_back(std::make_unique<Problem>(size.numel, size.tensors, numbers));
  const bool verified = verify(*problems[0], type, options.ours_only);
  std::vector<Contender> contenders;
  const auto add = [&](const Entry& entry) {
    const double per_element = bytes_of(entry, type);
    if (per_element == 0) return;
    contenders.push_back(
        {entry.name, per_element * static_cast<double>(size.numel), [&problems, body = entry.body](int64_t call) {
           ((*problems[static_cast<size_t>(call) % problems.size()]).*body)();
         }});
  };
  for (const Entry& entry : ours) add(entry);
  if (!options.ours_only) {
    for (const Entry& entry : baselines) add(entry);
  }
  time_in_turn(contenders, count, options.batch_milliseconds / 1e3);
  print(contenders, size, verified);
  return verified;
}

int run(const Options& options) {
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error != cudaSuccess || devices == 0) {
    std::fprintf(stderr, "bench_cuda_outer_step: there is no GPU here (%s), so there is nothing to measure\n",
                 error == cudaSuccess ? "none is counted" : cudaGetErrorString(error));
    return 3;
  }
  cudaDeviceProp properties{};
  OUTERLOOP_CUDA_CHECK(cudaGetDeviceProperties(&properties, 0));
  std::printf("%s, %d multiprocessors, %.0f GB\n", properties.name, properties.multiProcessorCount,
              static_cast<double>(properties.totalGlobalMem) / 1e9);
  const auto start = Clock::now();
  bool verified = true;
  for (const Case& size : options.cases) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      if (options.seconds > 0 && Clock::now() - start > std::chrono::duration<double>(options.seconds)) {
        std::printf("%lld elements in %lld tensors: skipped for time\n", static_cast<long long>(size.numel),
                    static_cast<long long>(size.tensors));
        continue;
      }
      verified = measure(size, type, options) && verified;
      c10::cuda::CUDACachingAllocator::emptyCache();
      std::fflush(stdout);
    }
  }
  return verified ? 0 : 1;
}

}  // namespace
}  // namespace outerloop::bench

int main(int argc, char** argv) {
  const outerloop::bench::Options options = outerloop::bench::parse(argc, argv);
  const at::NoGradGuard no_grad;
  try {
    return outerloop::bench::run(options);
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "bench_cuda_outer_step: %s\n", error.what_without_backtrace());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_cuda_outer_step: %s\n", error.what());
  }
  return 1;
}
