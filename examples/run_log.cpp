#include "run_log.hpp"

#include <unistd.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace {

using Json = nlohmann::ordered_json;

std::string with_commas(int64_t number) {
  const std::string digits = std::to_string(number);
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

std::string clock(double seconds) {
  const auto whole = static_cast<int64_t>(seconds + 0.5);
  char text[32];
  std::snprintf(text, sizeof(text), "%ld:%02ld", static_cast<long>(whole / 60), static_cast<long>(whole % 60));
  return text;
}

std::string printable(std::string text) {
  for (char& c : text) {
    if (c != '\n' && (c < ' ' || c > '~')) c = '?';
  }
  return text;
}

}  // namespace

RunLog::RunLog(const Options& options, int rank, int64_t parameters)
    : options_(options), speaks_(rank == 0), on_terminal_(isatty(STDERR_FILENO) == 1) {
  if (!speaks_) return;
  if (!options.log.empty()) {
    file_.open(options.log);
    if (!file_) throw std::runtime_error("--log " + options.log + ": cannot be written");
  }
  write(Json{{"kind", "run"},
             {"mode", name_of(options.mode)},
             {"replicas", options.processes()},
             {"steps", options.steps},
             {"seed", options.seed},
             {"batch", options.batch},
             {"inner", options.muon ? "muon" : "adamw"},
             {"lr", options.lr},
             {"weight_decay", options.weight_decay},
             {"warm_up", options.warm_up},
             {"lr_decay", options.decay == Decay::linear ? "linear" : "cosine"},
             {"device", options.cuda ? "cuda" : "cpu"},
             {"sync_every", options.sync_every},
             {"outer_lr", options.outer_lr},
             {"outer_momentum", options.outer_momentum},
             {"fragments", options.fragments},
             {"delay", options.delay},
             {"keep_local", options.keep_local},
             {"eager", options.eager},
             {"lanes", options.lanes},
             {"wire", options.wire},
             {"feedback", options.feedback},
             {"parameters", parameters}});
}

template <class Line>
void RunLog::write(const Line& line) {
  if (!file_.is_open()) return;
  file_ << line.dump() << std::endl;  // flushed: a run can be followed, and killed
  if (!file_) throw std::runtime_error("--log " + options_.log + ": cannot be written");
}

void RunLog::step(int64_t step, double loss_bits, int64_t bytes_sent, double seconds) {
  if (!speaks_) return;
  recent_loss_ += (loss_bits - recent_loss_) / static_cast<double>(std::min<int64_t>(step, 20));
  const double pause = on_terminal_ ? 0.2 : 5;
  if (seconds - shown_at_ < pause && step < options_.steps) return;
  shown_at_ = seconds;
  const auto bytes_per_step = static_cast<double>(options_.processes() * options_.batch * 64);
  const double steps_per_second = static_cast<double>(step) / seconds;
  std::fprintf(stderr, "%s%-9s step %5ld/%ld  loss %.3f bits/byte  %s tokens/s  %8.3f MB sent  %s left%s",
               on_terminal_ ? "\r\033[K" : "", name_of(options_.mode).c_str(), static_cast<long>(step),
               static_cast<long>(options_.steps), recent_loss_,
               with_commas(static_cast<int64_t>(bytes_per_step * steps_per_second)).c_str(),
               static_cast<double>(bytes_sent) / 1e6,
               clock(static_cast<double>(options_.steps - step) / steps_per_second).c_str(),
               on_terminal_ && step < options_.steps ? "" : "\n");
}

void RunLog::round(const outerloop::SyncReport& report, int64_t bytes_sent) {
  if (!speaks_) return;
  if (report.fragment >= std::ssize(fragments_)) fragments_.resize(report.fragment + 1);
  OfFragment& sum = fragments_[report.fragment];
  sum.all_bytes += report.wire_bytes;
  if (report.staleness == options_.delay) {  // else sync() did not wait so long
    ++sum.rounds;
    sum.staleness += report.staleness;
    sum.bytes += report.wire_bytes;
    sum.reduce_seconds += report.reduce.count();
    sum.wait_seconds += report.reduce_wait.count();
  }
  write(Json{{"kind", "round"},
             {"step", report.inner_step},
             {"fragment", report.fragment},
             {"staleness", report.staleness},
             {"round", report.round},
             {"committed", report.outcome == outerloop::Outcome::committed},
             {"reason", report.reason},
             {"delta_norm", report.delta_norm},
             {"mean_delta_norm", report.mean_delta_norm},
             {"bytes_sent", bytes_sent},
             {"wire_bytes", report.wire_bytes},
             {"send_seconds", report.send.count()},
             {"reduce_seconds", report.reduce.count()},
             {"wait_seconds", report.reduce_wait.count()},
             {"apply_seconds", report.apply.count()}});
}

void RunLog::evaluation(int64_t step, double bits_per_byte, int64_t bytes_sent, double seconds) {
  if (!speaks_) return;
  write(Json{{"kind", "evaluation"},
             {"step", step},
             {"train_bits_per_byte", recent_loss_},
             {"validation_bits_per_byte", bits_per_byte},
             {"bytes_sent", bytes_sent},
             {"seconds", seconds}});
}

void RunLog::result(const RunResult& result) {
  if (!speaks_) return;
  Json replicas = Json::array();
  int64_t socket_bytes = 0;
  for (const auto& replica : result.replicas) {
    replicas.push_back(Json{{"bytes_sent", replica.bytes_sent},
                            {"socket_bytes", replica.socket_bytes},
                            {"fingerprint", replica.fingerprint}});
    socket_bytes = std::max(socket_bytes, replica.socket_bytes);
  }
  write(Json{{"kind", "result"},
             {"mode", name_of(options_.mode)},
             {"validation_bits_per_byte", result.bits_per_byte},
             {"seconds", result.seconds},
             {"replicas", replicas}});
  std::printf("%-10s  %26s  %22s  %18s  %9s\n", "mode", "validation bits per byte", "bytes sent per replica",
              "sockets' own count", "wall time");
  std::printf("%-10s  %26.4f  %22s  %18s  %7.1f s\n", name_of(options_.mode).c_str(), result.bits_per_byte,
              with_commas(result.replicas.front().bytes_sent).c_str(), with_commas(socket_bytes).c_str(),
              result.seconds);
  if (options_.streams()) fragments();
  std::fflush(stdout);
}

/// A line for each: means over its rounds on the schedule, and bytes of all.
void RunLog::fragments() const {
  std::printf("\n%8s  %6s  %15s  %13s  %13s  %15s  %14s\n", "fragment", "rounds", "staleness", "reduce", "waited",
              "bytes per round", "bytes per step");
  for (size_t f = 0; f < fragments_.size(); ++f) {
    const OfFragment& sum = fragments_[f];
    const auto rounds = static_cast<double>(std::max<int64_t>(sum.rounds, 1));
    std::printf("%8zu  %6ld  %9.1f steps  %10.2f ms  %10.2f ms  %15s  %14s\n", f, static_cast<long>(sum.rounds),
                static_cast<double>(sum.staleness) / rounds, 1e3 * sum.reduce_seconds / rounds,
                1e3 * sum.wait_seconds / rounds, with_commas(sum.bytes / static_cast<int64_t>(rounds)).c_str(),
                with_commas(sum.all_bytes / options_.steps).c_str());
  }
}

void RunLog::warning(const std::string& text) {
  if (speaks_) std::fprintf(stderr, "train_gpt: warning: %s\n", text.c_str());
}

void RunLog::text(const std::string& sample) {
  if (speaks_) std::printf("\nText from the trained model:\n%s\n", printable(sample).c_str());
}
