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
enum class Decay { cosine, linear };

/// The defaults are a recipe for two replicas that reaches synchronous training within 0.05 bits per byte.
struct Options {
  std::string data;  ///< any file of bytes
  Mode mode = Mode::diloco;
  int replicas = 2;  ///< under torchrun: its WORLD_SIZE
  int64_t steps = 1200;
  int64_t seed = 0;
  int64_t batch = 8;  ///< windows per replica and step
  bool muon = false;  ///< for the matrices inside the blocks; AdamW for all else
  double lr = 0.01;   ///< peak
  double weight_decay = 0.1;
  int64_t warm_up = -1;         ///< steps; less than 0: a quarter of them
  Decay decay = Decay::cosine;  ///< from there on, down to 2 % of the peak
  int threads = 1;              ///< per replica
  bool cuda = false;            ///< train on GPUs, which replicas on one machine take in turn

  int64_t sync_every = 20;
  double outer_lr = 0.7;
  double outer_momentum = 0.6;
  int64_t fragments = 1;
  int64_t delay = 0;
  double keep_local = 0;
  bool eager = false;
  int lanes = 0;
  std::string wire = "fp32";  ///< of wires.hpp
  double feedback = 0;        ///< decay of error feedback; 0: none

  int64_t eval_every = 60;  ///< steps; with rounds, at the first round from there on
  int64_t eval_windows = 1024;
  int64_t sample = 300;  ///< bytes of text to write at the end
  std::string log;       ///< JSON lines; empty: none
  int64_t timeout = 60;  ///< seconds that a replica waits for the others

  /// Whether rounds are of parts of the model, or under way for a while.
  bool streams() const { return mode == Mode::diloco && (fragments > 1 || delay > 0); }
  bool has_rounds() const { return mode == Mode::diloco || mode == Mode::local_sgd; }
  /// How many processes train. Solo is one replica of `replicas`: it sees rank 0's part of the data, and no other.
  int processes() const { return mode == Mode::solo ? 1 : replicas; }
};

/// Throws BadInput. Prints the help and exits if that is what was asked for.
Options parse_options(int argc, char** argv);
