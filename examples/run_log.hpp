#pragma once

#include <outerloop/report.hpp>

#include <chrono>
#include <fstream>
#include <string>
#include <vector>

#include "options.hpp"

/// Seconds in training and rounds; stands still during evaluations, which cost each mode differently and teach nothing.
class Stopwatch {
 public:
  void start() { since_ = std::chrono::steady_clock::now(); }
  void stop() { before_ += std::chrono::steady_clock::now() - since_; }
  double seconds() const { return std::chrono::duration<double>(before_).count(); }

 private:
  std::chrono::steady_clock::time_point since_;
  std::chrono::steady_clock::duration before_{};
};

/// What one replica has to show at the end.
struct ReplicaResult {
  int64_t bytes_sent = 0;    ///< deltas or gradients, counted as ring all-reduces
  int64_t socket_bytes = 0;  ///< all that its TCP sockets sent
  uint64_t fingerprint = 0;  ///< of its parameters
};

struct RunResult {
  double bits_per_byte = 0;
  double seconds = 0;
  std::vector<ReplicaResult> replicas;
};

/// What a run shows and writes: the progress line, the JSON lines, the table. Silent on all ranks but 0.
class RunLog {
 public:
  /// Throws std::runtime_error if the log cannot be written.
  RunLog(const Options& options, int rank, int64_t parameters);

  void step(int64_t step, double loss_bits, int64_t bytes_sent, double seconds);
  void round(const outerloop::SyncReport& report, int64_t bytes_sent);
  void evaluation(int64_t step, double bits_per_byte, int64_t bytes_sent, double seconds);
  void result(const RunResult& result);
  void warning(const std::string& text);
  void text(const std::string& sample);

 private:
  /// What was reported of a fragment's rounds.
  struct OfFragment {
    int64_t rounds = 0, staleness = 0, bytes = 0, all_bytes = 0;
    double reduce_seconds = 0, wait_seconds = 0;
  };
  template <class Json>
  void write(const Json& line);
  void fragments() const;

  const Options& options_;
  const bool speaks_, on_terminal_;
  std::ofstream file_;
  double recent_loss_ = 0;  ///< bits per byte, a running mean over about 20 steps
  double validation_ = 0;   ///< bits per byte, at the last evaluation
  double shown_at_ = -1;    ///< seconds
  std::vector<OfFragment> fragments_ = {};
};
