#include "options.hpp"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>

namespace outerloop::bench {

namespace {

Case to_case(const std::string& text) {
  long long numel = 0, tensors = 0;
  char rest = 0;
  if (std::sscanf(text.c_str(), "%lld/%lld%c", &numel, &tensors, &rest) != 2 || tensors < 1 || numel < tensors) {
    throw CLI::ValidationError("--case", "'" + text + "' is not ELEMENTS/TENSORS with at least one element for each");
  }
  return {numel, tensors};
}

}  // namespace

Options parse(int argc, char** argv) {
  Options options;
  std::vector<std::string> cases;
  double working_set_mib = options.working_set / (1 << 20);
  CLI::App app("Times send, apply and the outer step on a GPU, against a copy and against what ATen offers.");
  app.option_defaults()->always_capture_default();
  app.add_option("--case", cases, "ELEMENTS/TENSORS, as often as wanted, instead of those up to 10^9 elements");
  app.add_option("--seconds", options.seconds, "Begin no case after so many; 0: no limit")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--working-set-mib", working_set_mib, "As many problems in turn as it takes")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--batch-ms", options.batch_milliseconds, "What one pair of events times, at least")
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--ours-only", options.ours_only, "No kernel of libtorch: no baselines, results compared on the CPU");
  try {
    app.parse(argc, argv);
    if (!cases.empty()) options.cases.clear();
    for (const std::string& text : cases) options.cases.push_back(to_case(text));
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    std::exit(code == 0 ? 0 : 2);
  }
  options.working_set = working_set_mib * (1 << 20);
  return options;
}

}  // namespace outerloop::bench
