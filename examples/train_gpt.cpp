// Trains a small byte-level GPT on a text with several replicas, by DiLoCo, local SGD, synchronous data parallelism or
// not together at all, and shows what each costs in bytes and reaches in loss. Starts its own replicas, or runs under
// `torchrun --no-python --nproc-per-node 2 --`.

#include <torch/torch.h>
#include <outerloop/outerloop.hpp>

#include <bit>
#include <cstdio>
#include <numbers>

#include "corpus.hpp"
#include "device.hpp"
#include "gpt.hpp"
#include "launcher.hpp"
#include "options.hpp"
#include "recipe.hpp"
#include "run_log.hpp"
#include "schedule.hpp"
#include "socket_bytes.hpp"

namespace {

using outerloop::Communicator;
using torch::Tensor;

double bits(double nats) { return nats / std::numbers::ln2; }

/// Synchronous data parallelism by hand: one flat all-reduce of all gradients. Returns the bytes sent.
int64_t average_gradients(Communicator& comm, const std::vector<Tensor>& params) {
  std::vector<Tensor> tensors;
  for (const auto& param : params) tensors.push_back(param.grad());
  outerloop::FlatParams gradients(tensors);
  const Tensor flat = gradients.gather();
  outerloop::mean_across(comm, flat).wait();
  gradients.scatter(flat);
  return outerloop::all_reduce_bytes(static_cast<int64_t>(flat.nbytes()), comm.size());
}

Tensor loss_of(Gpt& model, const Batch& batch, torch::nn::functional::CrossEntropyFuncOptions options = {}) {
  const Tensor logits = model->forward(batch.input);
  return torch::nn::functional::cross_entropy(logits.flatten(0, 1), batch.target.flatten(), options);
}

/// Bits per byte on the validation text, of which each replica reads its part. Collective.
double evaluate(Gpt& model, const Corpus& corpus, const Options& options, Communicator& comm) {
  const torch::NoGradGuard no_grad;
  constexpr size_t chunk = 64;  // windows at a time
  const auto starts = corpus.validation_starts(options.eval_windows, model->shape.context);
  Tensor nats = torch::zeros({1}, torch::dtype(torch::kDouble).device(model->device()));
  for (size_t at = chunk * comm.rank(); at < starts.size(); at += chunk * comm.size()) {
    const auto end = std::min(at + chunk, starts.size());
    const auto batch =
        windows_of(corpus.validation(), {starts.begin() + at, starts.begin() + end}, model->shape.context)
            .to(model->device());
    nats += loss_of(model, batch, torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum));
  }
  nats = nats.to(comm.device());
  comm.all_reduce_sum(nats).wait();
  return bits(nats.item<double>()) / static_cast<double>(options.eval_windows * model->shape.context);
}

/// What every replica sent and ended with. Collective; throws if they did not end with the same parameters.
std::vector<ReplicaResult> gather_results(const Gpt& model, int64_t bytes_sent, Communicator& comm) {
  const uint64_t fingerprint = outerloop::fingerprint(outerloop::FlatParams(model->parameters()).gather());
  const Tensor mine =
      torch::tensor({bytes_sent, socket_bytes_sent(), std::bit_cast<int64_t>(fingerprint)}).to(comm.device());
  Tensor rows = torch::empty({comm.size(), mine.numel()}, mine.options());
  comm.all_gather(rows, mine).wait();
  rows = rows.cpu();
  std::vector<ReplicaResult> results;
  for (int rank = 0; rank < comm.size(); ++rank) {
    const auto row = rows.accessor<int64_t, 2>()[rank];
    results.push_back({row[0], row[1], std::bit_cast<uint64_t>(row[2])});
    if (results[rank].fingerprint != results[0].fingerprint) {
      throw std::runtime_error("replicas 0 and " + std::to_string(rank) + " ended with different parameters");
    }
  }
  return results;
}

/// Copies values into parameters, and returns what was there.
std::vector<Tensor> put(const std::vector<Tensor>& params, const std::vector<Tensor>& values) {
  const torch::NoGradGuard no_grad;
  std::vector<Tensor> before;
  for (size_t i = 0; i < params.size(); ++i) {
    before.push_back(params[i].detach().clone());
    params[i].detach().copy_(values[i]);
  }
  return before;
}

/// `evaluating`: a group beside that of the rounds, which may be under way.
RunResult train(Gpt& model, const Corpus& corpus, const Options& options, const std::shared_ptr<Communicator>& comm,
                Communicator& evaluating, RunLog& log) {
  RunResult result;
  int64_t bytes_sent = 0, evaluated_at = 0;
  const auto optimizer = make_optimizer(model, options, comm, log, [&](const outerloop::SyncReport& report) {
    bytes_sent += report.wire_bytes;
    log.round(report, bytes_sent);
  });
  auto* const outer = dynamic_cast<outerloop::OuterLoopOptimizer*>(optimizer.get());
  Batches batches(corpus.shard(comm->rank()), options.batch, model->shape.context, options.seed, comm->rank());
  Stopwatch watch;

  for (int64_t step = 1; step <= options.steps; ++step) {
    watch.start();
    for (auto& group : optimizer->param_groups()) group.options().set_lr(lr_at(step, options));
    optimizer->zero_grad();
    const Tensor loss = loss_of(model, batches.next().to(model->device()));
    loss.backward();
    if (options.mode == Mode::ddp) bytes_sent += average_gradients(*comm, model->parameters());
    torch::nn::utils::clip_grad_norm_(model->parameters(), 1.0);
    optimizer->step();  // an inner step; for diloco and local-sgd every sync_every-th is also a round

    const bool last = step == options.steps, off_schedule = outer && step % options.sync_every != 0;
    if (last && outer && (off_schedule || options.streams())) outer->sync();
    const double loss_bits = bits(loss.item<double>());  // a GPU has done the step when it can tell
    watch.stop();
    log.step(step, loss_bits, bytes_sent, watch.seconds());
    if (last || (step - evaluated_at >= options.eval_every && !off_schedule)) {
      // What the replicas agree on is evaluated, and is what is left at the end.
      const auto params = parameters_of(*optimizer);  // in the order of the anchors
      const auto local = outer ? put(params, outer->anchors()) : params;
      result.bits_per_byte = evaluate(model, corpus, options, evaluating);
      if (outer && !last) put(params, local);
      log.evaluation(step, result.bits_per_byte, bytes_sent, watch.seconds());
      evaluated_at = step;
    }
  }
  result.seconds = watch.seconds();
  result.replicas = gather_results(model, bytes_sent, *comm);
  return result;
}

/// Over NCCL if each replica has a GPU of its own, else over Gloo, which also serves CPUs and replicas that share a
/// GPU. A group that cannot be joined is no loss of contact: its reason is told.
std::shared_ptr<outerloop::Communicator> connect(const Options& options) {
  try {
    return outerloop::connect_from_env(std::chrono::seconds(options.timeout), options.lanes);
  } catch (const outerloop::CommError& error) {
    throw std::runtime_error(error.what());
  }
}

/// Replicas on one machine take its GPUs in turn, and share them if there are more replicas.
torch::Device device_for(const Options& options) {
  if (!options.cuda) return torch::kCPU;
  const char* local_rank = std::getenv("LOCAL_RANK");  // of torchrun, or of our launcher
  const int rank = std::atoi(local_rank ? local_rank : std::getenv("RANK"));
  return {torch::kCUDA, static_cast<c10::DeviceIndex>(rank % count_gpus())};
}

int run_replica(const Options& options, const Corpus& corpus) {
  at::set_num_threads(options.threads);  // said here, because torchrun sets OMP_NUM_THREADS=1 and others set nothing
  const auto comm = connect(options), evaluating = options.streams() ? connect(options) : comm;
  torch::manual_seed(static_cast<uint64_t>(options.seed));
  const torch::Device device = device_for(options);
  const c10::DeviceGuard current(device);
  Gpt model;  // made on the CPU, so that every device starts from the same
  model->to(device);
  RunLog log(options, comm->rank(), outerloop::FlatParams(model->parameters()).numel());
  log.result(train(model, corpus, options, comm, *evaluating, log));
  if (comm->rank() == 0 && options.sample > 0) {
    const auto prompt = corpus.validation().substr(0, static_cast<size_t>(model->shape.context));
    log.text(sample(model, prompt, options.sample));
  }
  return 0;
}

int fail(int exit_code, const std::string& message) {
  const char* rank = std::getenv("RANK");
  std::fprintf(stderr, "train_gpt: %s%s\n", rank ? ("replica " + std::string(rank) + ": ").c_str() : "",
               message.c_str());
  return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Options options = parse_options(argc, argv);
    if (options.cuda) count_gpus();  // throws before any replica starts
    const Corpus corpus(options.data, options.replicas);
    return is_replica() ? run_replica(options, corpus) : launch_replicas(options.processes(), argv);
  } catch (const BadInput& error) {
    return fail(2, error.what());
  } catch (const outerloop::CommError& error) {
    return is_watched() ? exit_lost_contact : fail(exit_lost_contact, error.what());
  } catch (const c10::Error& error) {
    return fail(1, error.what_without_backtrace());
  } catch (const std::exception& error) {
    return fail(1, error.what());
  }
}
