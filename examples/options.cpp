#include "options.hpp"

#include <outerloop/outer_rule.hpp>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>

#include "wires.hpp"

namespace {

constexpr int most_replicas = 1024;
constexpr int64_t most = 1'000'000'000'000;
const CLI::Range positive(int64_t{1}, most), non_negative(int64_t{0}, most);

const std::map<std::string, Mode> modes{
    {"diloco", Mode::diloco}, {"local-sgd", Mode::local_sgd}, {"ddp", Mode::ddp}, {"solo", Mode::solo}};

const std::map<std::string, Decay> decays{{"cosine", Decay::cosine}, {"linear", Decay::linear}};

template <class Value>
std::set<std::string> names_of(const std::map<std::string, Value>& values) {
  std::set<std::string> names;
  for (const auto& [name, value] : values) names.insert(name);
  return names;
}

const CLI::Validator in_0_to_1(
    [](const std::string& given) {
      double value = 0;
      const bool fits = CLI::detail::lexical_cast(given, value) && value > 0 && value <= 1;
      return fits ? "" : given + " is not in (0, 1]";
    },
    "FLOAT in (0, 1]");

void describe(CLI::App& app, Options& options) {
  app.option_defaults()->always_capture_default()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.add_option("--data", options.data, "Text to train on: any file of 64 KiB or more")->required();
  app.add_option_function<std::string>(
         "--mode", [&options](const std::string& name) { options.mode = modes.at(name); },
         "How the replicas share what they learn: diloco, local-sgd, ddp (gradients, every step) or solo (not at all)")
      ->check(CLI::IsMember(modes))
      ->default_str(name_of(options.mode));
  app.add_option("--replicas", options.replicas, "Processes to start (not under torchrun, which starts its own)")
      ->check(CLI::Range(1, most_replicas));
  app.add_option("--steps", options.steps, "Inner steps of each replica")->check(positive);
  app.add_option("--seed", options.seed, "Of the initial parameters and of the batches")->check(non_negative);
  app.add_option("--batch", options.batch, "Windows of 64 bytes per replica and step")->check(positive);
  app.add_option_function<std::string>(
         "--inner", [&options](const std::string& name) { options.muon = name == "muon"; },
         "The inner optimizer: adamw, or muon for the matrices inside the blocks and adamw for all else")
      ->check(CLI::IsMember(std::set<std::string>{"adamw", "muon"}))
      ->default_str("adamw");
  app.add_option("--lr", options.lr, "Peak learning rate of the inner optimizer")->check(CLI::Range(0.0, 1e6));
  app.add_option("--weight-decay", options.weight_decay, "Of the inner optimizer")->check(CLI::Range(0.0, 1e6));
  app.add_option("--warm-up", options.warm_up, "Steps until the peak learning rate; -1: a quarter of them")
      ->check(CLI::Range(int64_t{-1}, most));
  app.add_option_function<std::string>(
         "--lr-decay", [&options](const std::string& name) { options.decay = decays.at(name); },
         "From the peak down to 2 % of it: cosine or linear")
      ->check(CLI::IsMember(decays))
      ->default_str("cosine");
  app.add_option_function<std::string>(
         "--device", [&options](const std::string& name) { options.cuda = name == "cuda"; },
         "Where the replicas train: cpu or, with the program train_gpt_cuda, cuda (they share the GPUs there are)")
      ->check(CLI::IsMember(std::set<std::string>{"cpu", "cuda"}))
      ->default_str("cpu");
  app.add_option("--threads", options.threads, "Threads of each replica on the CPU")->check(CLI::Range(1, 1024));
  app.add_option("--sync-every", options.sync_every, "Inner steps between rounds")->check(positive);
  app.add_option("--outer-lr", options.outer_lr, "Outer learning rate of diloco");
  app.add_option("--outer-momentum", options.outer_momentum, "Outer Nesterov momentum of diloco");
  app.add_option("--fragments", options.fragments, "Parts of the model that take turns at rounds, of diloco")
      ->check(positive);
  app.add_option("--delay", options.delay, "Inner steps between a round's send and its apply, of diloco")
      ->check(non_negative);
  app.add_option("--keep-local", options.keep_local, "How much of the local parameters survives a round, of diloco")
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--lanes", options.lanes, "Pieces of a round that are under way at a time; 0: rounds go whole")
      ->check(CLI::Range(0, 64));
  app.add_flag("--eager", options.eager, "A replica counts its own newest delta at once, of diloco");
  app.add_option("--wire", options.wire, "How deltas travel")->check(CLI::IsMember(names_of(wires)));
  app.add_option("--feedback", options.feedback, "Decay of error feedback, with which what a wire loses is sent later")
      ->check(in_0_to_1)
      ->default_str("none");
  app.add_option("--eval-every", options.eval_every, "Steps between evaluations")->check(positive);
  app.add_option("--eval-windows", options.eval_windows, "Validation windows of 64 bytes")->check(positive);
  app.add_option("--sample", options.sample, "Bytes of text to write at the end")->check(non_negative);
  app.add_option("--log", options.log, "File for one JSON line per evaluation and per round");
  app.add_option("--timeout", options.timeout, "Seconds that a replica waits for the others")
      ->check(CLI::Range(1, 1'000'000));
}

void check_schedule(const Options& options) {
  if (options.mode != Mode::diloco) {
    const Options unset;
    const auto refuse = [&](bool given, const std::string& name) {
      if (given) throw BadInput(name + " is of --mode diloco, not of " + name_of(options.mode));
    };
    refuse(options.fragments != unset.fragments, "--fragments");
    refuse(options.delay != unset.delay, "--delay");
    refuse(options.keep_local != unset.keep_local, "--keep-local");
    refuse(options.eager, "--eager");
  }
  if (!options.has_rounds() && (options.wire != "fp32" || options.feedback != 0)) {
    throw BadInput(std::string(options.feedback != 0 ? "--feedback" : "--wire") + " is of deltas, which --mode " +
                   name_of(options.mode) + " has none of");
  }
  if (options.feedback != 0 && (options.wire == "fp32" || options.delay >= options.sync_every)) {
    throw BadInput("--feedback wants a --wire that loses something and a --delay below --sync-every, not " +
                   options.wire + " and " + std::to_string(options.delay));
  }
  if (options.eager && options.wire != "fp32") throw BadInput("--eager wants --wire fp32, not " + options.wire);
  if (options.warm_up > options.steps) {
    throw BadInput("--warm-up " + std::to_string(options.warm_up) + ": more than --steps " +
                   std::to_string(options.steps));
  }
  if (options.fragments > options.sync_every) {
    throw BadInput("--fragments " + std::to_string(options.fragments) + ": more than --sync-every " +
                   std::to_string(options.sync_every));
  }
  if (options.eager && (options.delay == 0 || options.delay % options.sync_every != 0)) {
    throw BadInput("--eager wants a --delay of whole windows, a multiple of --sync-every " +
                   std::to_string(options.sync_every) + ", not " + std::to_string(options.delay));
  }
}

void adopt_torchrun(Options& options) {
  const char* size = std::getenv("WORLD_SIZE");
  if (!std::getenv("RANK") || !size) return;
  int processes = 0;
  const char* end = size + std::strlen(size);
  const auto [stop, error] = std::from_chars(size, end, processes);
  if (error != std::errc() || stop != end || processes < 1 || processes > most_replicas) {
    throw BadInput("WORLD_SIZE must be an integer from 1 to " + std::to_string(most_replicas) + ", got '" + size + "'");
  }
  if (options.mode != Mode::solo) {
    options.replicas = processes;
  } else if (processes != 1) {
    throw BadInput("--mode solo trains a single replica, but WORLD_SIZE is " + std::string(size));
  }
}

}  // namespace

std::string name_of(Mode mode) {
  for (const auto& [name, value] : modes) {
    if (value == mode) return name;
  }
  throw std::logic_error("a mode without a name");
}

Options parse_options(int argc, char** argv) {
  Options options;
  CLI::App app("Trains a small byte-level GPT on a text, by several replicas that communicate little.", "train_gpt");
  describe(app, options);
  try {
    app.parse(argc, argv);
    outerloop::Nesterov(options.outer_lr, options.outer_momentum);  // the library's own check, before replicas start
  } catch (const CLI::CallForHelp& help) {
    std::exit(app.exit(help));
  } catch (const CLI::ParseError& error) {
    throw BadInput(error.what());
  } catch (const c10::Error& error) {
    throw BadInput(error.what_without_backtrace());
  }
  check_schedule(options);
  adopt_torchrun(options);
  std::error_code none;
  if (std::filesystem::equivalent(options.data, options.log, none)) {
    throw BadInput("--log " + options.log + ": is the text to train on");
  }
  return options;
}
