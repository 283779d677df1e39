// What does a whole round cost over Gloo on loopback, beyond moving the bytes and running the kernels? And pipelined
// over four lanes, against the bare all-reduce alone and torchft's passes?

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/optim/sgd.h>
#include <outerloop/diloco.hpp>
#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <thread>

#include "comm/gloo.hpp"
#include "kernels/cpu.hpp"
#include "params/flat_params.hpp"
#include "report.hpp"
#include "torchft.hpp"

namespace outerloop::bench {
namespace {

constexpr int replicas = 2;
constexpr int64_t tensors = 150;
constexpr int lanes = 4;
const std::vector<int64_t> sizes{1'000'000, 10'000'000, 100'000'000};

enum class Work { prepare, round, pipelined, torchft, all_reduce, kernels };
struct Order {
  Work work;
  int64_t numel;
};

/// One model and what is done to it, on each replica.
class Replica {
 public:
  Replica(std::shared_ptr<Communicator> comm, std::shared_ptr<Communicator> with_lanes, int64_t numel)
      : comm_(std::move(comm)),
        params_(split(numel)),
        flat_(params_),
        anchor_(at::zeros({numel})),
        velocity_(at::zeros({numel})),
        wire_(at::zeros({numel})),
        anchors_(views_of(anchor_)),
        velocities_(views_of(velocity_)),
        optimizer_(torch::optim::SGD(params_, 0.1), comm_, {}),
        pipelined_(torch::optim::SGD(params_, 0.1), std::move(with_lanes), {}) {}

  void perform(Work work) {
    switch (work) {
      case Work::prepare:
        return prepare();
      case Work::round:
        return optimizer_.sync();
      case Work::pipelined:
        return pipelined_.sync();
      case Work::torchft:
        return torchft();
      case Work::all_reduce:
        return comm_->all_reduce_sum(wire_).wait();
      case Work::kernels:
        return kernels_alone();
    }
  }

 private:
  static std::vector<Tensor> split(int64_t numel) {
    std::vector<Tensor> params;
    for (const Tensor& part : at::zeros({numel}).tensor_split(tensors)) {
      params.push_back(part.clone().requires_grad_(true));
    }
    return params;
  }

  static std::vector<Tensor> views_of(const Tensor& flat) { return flat.tensor_split(tensors); }

  /// Parameters move, as by inner steps; then all replicas start together.
  void prepare() {
    const at::NoGradGuard no_grad;
    at::_foreach_add_(params_, 1e-3);
    wire_.fill_(1e-3);
    comm_->all_reduce_sum(at::zeros({1})).wait();
  }
  void torchft() {
    const at::NoGradGuard no_grad;
    torchft_passes(params_, anchors_, velocities_, replicas, 0.7, 0.9, [&](const std::vector<Tensor>& deltas) {
      std::vector<Pending> sums;
      for (const Tensor& delta : deltas) sums.push_back(comm_->all_reduce_sum(delta));
      for (Pending& sum : sums) sum.wait();
    });
  }
  void kernels_alone() {
    kernels::send(flat_.impl().pull(), anchor_, wire_, 1);
    kernels::apply(flat_.impl().pull(), anchor_, velocity_, wire_,
                   {.inverse_weight = 1.0 / replicas, .lr = 0.7, .momentum = 0.9, .nesterov = true});
  }

  std::shared_ptr<Communicator> comm_;
  std::vector<Tensor> params_;
  FlatParams flat_;
  Tensor anchor_, velocity_, wire_;
  std::vector<Tensor> anchors_, velocities_;
  DiLoCoOptimizer optimizer_, pipelined_;
};

/// This process's replicas, made when first asked for, on both sides alike.
class Replicas {
 public:
  Replicas(const std::string& store_file, int rank)
      : store_(c10::make_intrusive<c10d::FileStore>(store_file, replicas)),
        comm_(comm::gloo_over(store_, {.rank = rank, .size = replicas})),
        with_lanes_(comm::gloo_over(store_, {.rank = rank, .size = replicas, .lanes = lanes})) {
    at::set_num_threads(std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / replicas));
  }
  void perform(Order order) {
    auto& replica = made_[order.numel];
    if (!replica) replica = std::make_unique<Replica>(comm_, with_lanes_, order.numel);
    replica->perform(order.work);
  }

 private:
  c10::intrusive_ptr<c10d::Store> store_;
  std::shared_ptr<Communicator> comm_, with_lanes_;
  std::map<int64_t, std::unique_ptr<Replica>> made_;
};

/// The other replica: a process that does as it is told, and ends when its pipe does.
[[noreturn]] void follow(const std::string& store_file, int orders) {
  Replicas replicas(store_file, 1);
  Order order{};
  while (read(orders, &order, sizeof(order)) == sizeof(order)) replicas.perform(order);
  _exit(0);
}

class Leader {
 public:
  Leader(const std::string& store_file, int orders) : replicas_(store_file, 0), orders_(orders) {}
  void perform(Work work, int64_t numel) {
    const Order order{work, numel};
    if (write(orders_, &order, sizeof(order)) != sizeof(order)) throw std::runtime_error("the other replica is gone");
    replicas_.perform(order);
  }

 private:
  Replicas replicas_;
  int orders_;
};

std::string name(const char* what, int64_t numel) {
  return std::string(what) + "/10^" + std::to_string(std::lround(std::log10(numel)));
}

/// A figure's line: what it is of, its value and whether that is at most, or at least, the target.
void figure(const char* what, int64_t numel, double value, bool met) {
  std::printf("%-10lld %-52s %8.2f %s\n", static_cast<long long>(numel), what, value, verdict(met));
}

void summary(const Medians& seconds) {
  std::printf("A round over Gloo on loopback, %d processes, %lld tensors; medians, in ms\n", replicas,
              static_cast<long long>(tensors));
  std::printf("%-10s %10s %10s %10s %10s %10s\n", "elements", "round", "pipelined", "torchft", "all-reduce", "kernels");
  for (const int64_t numel : sizes) {
    const auto of = [&](const char* what) {
      const auto found = seconds.find(name(what, numel));
      return found == seconds.end() ? std::nan("") : found->second;
    };
    const double round = of("round"), pipelined = of("pipelined"), torchft = of("torchft"), sum = of("all_reduce"),
                 kernels = of("kernels");
    if (std::isnan(sum)) continue;
    std::printf("%-10lld %10.2f %10.2f %10.2f %10.2f %10.2f\n", static_cast<long long>(numel), round * 1e3,
                pipelined * 1e3, torchft * 1e3, sum * 1e3, kernels * 1e3);
    const double ratio = round / (sum + kernels);
    if (!std::isnan(ratio)) figure("round / (all-reduce + kernels), at most 1.15", numel, ratio, ratio <= 1.15);
    if (numel < 100'000'000 || std::isnan(pipelined)) continue;
    figure("pipelined / all-reduce, at most 0.95", numel, pipelined / sum, pipelined <= 0.95 * sum);
    figure("torchft / pipelined, at least 3.5", numel, torchft / pipelined, torchft >= 3.5 * pipelined);
  }
}

int lead(int argc, char** argv, const std::string& store_file, int orders) {
  Leader leader(store_file, orders);
  const auto add = [&](const char* what, Work work, int64_t numel) {
    contender(
        name(what, numel), 4 * numel, std::max<int64_t>(1, 50'000'000 / numel),
        [&leader, numel] { leader.perform(Work::prepare, numel); },
        [&leader, work, numel] { leader.perform(work, numel); });
  };
  for (const int64_t numel : sizes) {
    add("round", Work::round, numel);
    add("pipelined", Work::pipelined, numel);
    add("torchft", Work::torchft, numel);
    add("all_reduce", Work::all_reduce, numel);
    add("kernels", Work::kernels, numel);
  }
  return run(argc, argv, summary);
}

}  // namespace
}  // namespace outerloop::bench

int main(int argc, char** argv) {
  std::string folder = (std::filesystem::temp_directory_path() / "outerloop_round_XXXXXX").string();
  int pipe_ends[2];
  if (!mkdtemp(folder.data()) || pipe(pipe_ends) != 0) {
    std::perror("bench_round");
    return 1;
  }
  const pid_t other = fork();
  if (other == 0) {
    close(pipe_ends[1]);
    outerloop::bench::follow(folder + "/store", pipe_ends[0]);
  }
  close(pipe_ends[0]);
  const int code = outerloop::bench::lead(argc, argv, folder + "/store", pipe_ends[1]);
  close(pipe_ends[1]);
  waitpid(other, nullptr, 0);
  std::filesystem::remove_all(folder);
  return code;
}
