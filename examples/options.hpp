#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

/// Something the user can put right: one line, exit code 2, before any replica starts.
struct BadInput : std::runtime_error {
  using std::runtime_error::runtime_error;
};

enum class Mode { diloco, local_sgd, ddp, solo };
std::string name_of(Mode mode);

/// The defaults are a recipe for two replicas that reaches synchronous training within 0.05 bits per byte.
struct Options {
  std::string data;  ///< any file of bytes
  Mode mode = Mode::diloco;
  int replicas = 2;  ///< under torchrun: its WORLD_SIZE
  int64_t steps = 1200;
  int64_t seed = 0;
  int64_t batch = 8;  ///< windows per replica and step
  double lr = 0.01;   ///< peak; a quarter of the steps is warm-up, then a cosine down to 2 %
  int threads = 1;    ///< per replica
  bool cuda = false;  ///< train on GPUs, which replicas on one machine take in turn

  int64_t sync_every = 20;
  double outer_lr = 0.7;
  double outer_momentum = 0.6;
  int64_t fragments = 1;
  int64_t delay = 0;
  double keep_local = 0;
  bool eager = false;
  int lanes = 0;

  int64_t eval_every = 60;  ///< steps; with rounds, at the first round from there on
  int64_t eval_windows = 1024;
  int64_t sample = 300;  ///< bytes of text to write at the end
  std::string log;       ///< JSON lines; empty: none
  int64_t timeout = 60;  ///< seconds that a replica waits for the others

  /// Whether rounds are of parts of the model, or under way for a while.
  bool streams() const { return mode == Mode::diloco && (fragments > 1 || delay > 0); }
  /// How many processes train. Solo is one replica of `replicas`: it sees rank 0's part of the data, and no other.
  int processes() const { return mode == Mode::solo ? 1 : replicas; }
};

/// Throws BadInput. Prints the help and exits if that is what was asked for.
Options parse_options(int argc, char** argv);
