#pragma once

#include "vectors.hpp"

#include <cstdint>
#include <functional>
#include <source_location>
#include <stdexcept>
#include <string>

/// CUDA threads as fibres of the OS thread that launches. Blocks run one after another. In a block a warp runs as far
/// as it can, until all its lanes wait at a barrier or have ended, before the next warp runs at all; in a warp a lane
/// runs up to its next barrier or warp operation. This order is as far from lockstep as an order can be: what lacks a
/// barrier reads what is not there yet, or is there no more, in one schedule or another.
namespace outerloop::shim {

/// The order of blocks, of the warps in a block and of the lanes in a warp. Some mistakes show only in one of them.
enum class Schedule { forward, reverse, random };

/// Holds for all launches from now on, of every OS thread: not to be called while one of them launches.
void schedule(Schedule order, std::uint64_t seed = 0);

/// Blocks from number `count` on are left out, of all launches from now on, as if they had nothing to do; 0: none are.
/// What they would sum up is never complete.
void run_blocks_before(unsigned count);

/// What a kernel did wrong. The launch throws it to the host; all threads of the grid are left where they are.
class Fault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Of all launches since reset_counters(). Only the loads and stores by function (`__ldcs`, `__stcs`, ...) count: a
/// plain dereference passes unseen.
struct Counters {
  std::uint64_t launches = 0;
  std::uint64_t bytes_loaded = 0;
  std::uint64_t bytes_stored = 0;
  std::uint64_t accesses = 0;
  std::uint64_t wide_accesses = 0;  ///< those of 16 bytes
};
Counters counters();
void reset_counters();

/// What follows is for the CUDA functions of the shim.

using Site = std::source_location;

/// Throws Fault, naming thread and block.
[[noreturn]] void fault(const std::string& what, const Site& site);

enum class Meeting { block_barrier, warp_barrier, shuffle, vote };

/// Waits until all lanes of `mask` (the whole block at a block_barrier) are here. Then a vote returns the lanes with
/// value != 0, a shuffle the value of lane `source`; if that is not in the mask, garbage.
std::uint64_t meet(Meeting kind, unsigned mask, std::uint64_t value, unsigned source, const Site& site);

/// The calling thread's number in its block.
unsigned thread_in_block();

/// Calls `thread` once for each CUDA thread.
void run(dim3 grid, dim3 block, const std::function<void()>& thread);

/// Counted apart from Counters, for these belong to the OS thread and cost no atomic operation.
extern constinit thread_local Counters counted_here;

}  // namespace outerloop::shim

extern constinit thread_local uint3 threadIdx, blockIdx;
extern constinit thread_local dim3 blockDim, gridDim;
