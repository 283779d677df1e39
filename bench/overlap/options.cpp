#include "options.hpp"

#include <CLI/CLI.hpp>
#include <cstdlib>

namespace outerloop::bench {

Options parse_options(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Does a delay hide what a slow link makes of a round? Starts two replicas; where RANK is set, as torchrun does, "
      "it is one of them.",
      "bench_overlap");
  app.option_defaults()->always_capture_default();
  app.add_option("--repetitions", options.repetitions, "Of all contenders, in turn")->check(CLI::Range(1, 1000));
  app.add_option("--windows", options.windows, "Windows that are timed in one")->check(CLI::Range(1, 1000));
  app.add_option("--latency-ms", options.latency_ms, "Of a message, by the token bucket")->check(CLI::Range(0.0, 10.0));
  app.add_option("--throttled", options.throttled,
                 "Network interface to a link that is slow in itself; GLOO_SOCKET_IFNAME names that to a fast one. "
                 "Default: a token bucket");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error) == 0 ? 0 : 2);
  }
  return options;
}

}  // namespace outerloop::bench
