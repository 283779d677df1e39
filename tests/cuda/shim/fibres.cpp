#include "fibres.hpp"

#include "cuda_runtime.h"
#include "switching.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <exception>
#include <numeric>
#include <random>
#include <span>
#include <sstream>
#include <utility>
#include <vector>

constinit thread_local uint3 threadIdx{}, blockIdx{};
constinit thread_local dim3 blockDim{}, gridDim{};

asm(R"(
  .text
  .type outerloop_shim_switch, @function
  .globl outerloop_shim_switch
outerloop_shim_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size outerloop_shim_switch, .-outerloop_shim_switch
)");

namespace outerloop::shim {

constinit thread_local Counters counted_here{};

namespace {

struct Setting {
  Schedule order = Schedule::forward;
  std::uint64_t seed = 0;
} setting;
unsigned end_of_blocks = 0;

constexpr unsigned warp_size = warpSize;
constexpr unsigned ring = 64;  // of tokens in a warp; one that is used again too early only hides a race

enum class State { ready, waiting, ended };

/// A CUDA thread, and what it waits for.
struct Fibre {
  explicit Fibre(unsigned number) : number(number) {
#if defined(__SANITIZE_THREAD__)
    context.tsan_fibre = __tsan_create_fiber(0);
#endif
  }
  Fibre(const Fibre&) = delete;
  ~Fibre() {
#if defined(__SANITIZE_THREAD__)
    __tsan_destroy_fiber(context.tsan_fibre);
#endif
  }
  Context context;
  Stack stack;
  const unsigned number;
  State state = State::ended;
  Meeting kind{};
  unsigned mask = 0;
  std::uint64_t value = 0, result = 0;
  unsigned source = 0;
  Site site;
  char* token = nullptr;  ///< through which those who meet at a barrier see what the others wrote
};

bool same(const Site& a, const Site& b) {
  return a.line() == b.line() && a.column() == b.column() && std::strcmp(a.file_name(), b.file_name()) == 0;
}

bool meets(const Fibre& a, const Fibre& b) {
  return b.state == State::waiting && a.kind == b.kind && a.mask == b.mask && same(a.site, b.site);
}

std::string where(const Site& site) { return std::string(site.file_name()) + ":" + std::to_string(site.line()); }

std::string triple(uint3 index) {
  return "(" + std::to_string(index.x) + ", " + std::to_string(index.y) + ", " + std::to_string(index.z) + ")";
}

std::string describe(const Fibre& fibre) {
  if (fibre.state == State::ended) return "ended";
  static constexpr const char* names[] = {"__syncthreads", "__syncwarp", "a shuffle", "a vote"};
  std::ostringstream text;
  text << "wait for " << names[static_cast<int>(fibre.kind)];
  if (fibre.kind != Meeting::block_barrier) text << " of mask 0x" << std::hex << fibre.mask << std::dec;
  text << " at " << where(fibre.site);
  return text.str();
}

/// The fibres of one OS thread, which serve one launch after another.
class Engine {
 public:
  void run(dim3 grid, dim3 block, const std::function<void()>& thread);
  std::uint64_t meet(Meeting kind, unsigned mask, std::uint64_t value, unsigned source, const Site& site);
  Fibre& current() { return *current_; }

 private:
  static void enter();
  char* token_for(const Fibre& self);
  void run_block();
  bool run_warp(unsigned first);
  bool finish(const Fibre& one);
  void resume(Fibre& fibre);
  std::span<const unsigned> order(unsigned count, std::vector<unsigned>& numbers);
  [[noreturn]] void report_stuck() const;
  unsigned warp_end(unsigned first) const { return std::min(first + warp_size, threads_); }

  std::deque<Fibre> fibres_;
  Fibre* current_ = nullptr;
  Context host_;
  const std::function<void()>* thread_ = nullptr;
  std::exception_ptr failure_;
  unsigned threads_ = 0;
  std::minstd_rand random_;
  std::vector<unsigned> blocks_, warps_, lanes_;
  std::vector<unsigned> meetings_;  ///< of each warp: how many began, for their tokens
  std::vector<char> warp_tokens_;
  unsigned barriers_ = 0;
  char block_tokens_[2]{}, start_token_ = 0, end_token_ = 0;
};

/// The engine whose kernel runs in this OS thread.
constinit thread_local Engine* running = nullptr;

/// What the schedule says of 0..count-1.
std::span<const unsigned> Engine::order(unsigned count, std::vector<unsigned>& numbers) {
  numbers.resize(count);
  std::iota(numbers.begin(), numbers.end(), 0);
  if (setting.order == Schedule::reverse) std::reverse(numbers.begin(), numbers.end());
  if (setting.order == Schedule::random) std::shuffle(numbers.begin(), numbers.end(), random_);
  return numbers;
}

void Engine::run(dim3 grid, dim3 block, const std::function<void()>& thread) {
  const Quiet quiet;
  struct Running {  // to the end, be it a fault
    explicit Running(Engine* engine) { running = engine; }
    ~Running() { running = nullptr; }
  } const now(this);
  thread_ = &thread;
  threads_ = block.x * block.y * block.z;
  gridDim = grid;
  blockDim = block;
  random_.seed(static_cast<std::minstd_rand::result_type>(setting.seed + 1));
  while (fibres_.size() < threads_) fibres_.emplace_back(static_cast<unsigned>(fibres_.size()));
#if defined(__SANITIZE_THREAD__)
  host_.tsan_fibre = __tsan_get_current_fiber();
#endif
  try {
    for (const unsigned number : order(grid.x * grid.y * grid.z, blocks_)) {
      if (end_of_blocks != 0 && number >= end_of_blocks) continue;
      blockIdx = {number % grid.x, number / grid.x % grid.y, number / grid.x / grid.y};
      run_block();
    }
  } catch (...) {
    for (Fibre& fibre : fibres_) release_for(fibre.context, host_, &end_token_);
    acquire(&end_token_);
    fibres_.clear();  // some of them stand in the middle of the kernel
    throw;
  }
}

void Engine::run_block() {
  const unsigned warps = (threads_ + warp_size - 1) / warp_size;
  meetings_.assign(warps, 0);
  warp_tokens_.resize(warps * ring);
  barriers_ = 0;
  for (unsigned number = 0; number < threads_; ++number) {
    Fibre& fibre = fibres_[number];
    fibre.stack.prepare(fibre.context, &Engine::enter);
    fibre.state = State::ready;
  }
  // Blocks are in order for ThreadSanitizer: the next one has the same shared memory.
  release(&start_token_);
  for (;;) {
    for (const unsigned warp : order(warps, warps_)) {
      while (run_warp(warp * warp_size)) {
      }
    }
    const auto end = fibres_.begin() + threads_;
    if (std::all_of(fibres_.begin(), end, [](const Fibre& fibre) { return fibre.state == State::ended; })) break;
    const Fibre& first = fibres_.front();
    if (first.kind != Meeting::block_barrier ||
        !std::all_of(fibres_.begin(), end, [&](const Fibre& fibre) { return meets(first, fibre); }))
      report_stuck();
    ++barriers_;
    std::for_each(fibres_.begin(), end, [](Fibre& fibre) { fibre.state = State::ready; });
  }
  acquire(&end_token_);
}

/// Runs every lane that can run, once, and ends the meetings that are complete then. False: nothing to do.
bool Engine::run_warp(unsigned first) {
  bool moved = false;
  for (const unsigned lane : order(warp_end(first) - first, lanes_)) {
    Fibre& fibre = fibres_[first + lane];
    if (fibre.state != State::ready) continue;
    resume(fibre);
    moved = true;
  }
  if (!moved) return false;
  bool more = false;
  for (unsigned number = first; number < warp_end(first); ++number) {
    const Fibre& fibre = fibres_[number];
    if (fibre.state == State::waiting && fibre.kind != Meeting::block_barrier) more |= finish(fibre);
  }
  return more;
}

/// Ends the meeting at which `one` waits, if all lanes of its mask are there.
bool Engine::finish(const Fibre& one) {
  const unsigned first = one.number / warp_size * warp_size, mask = one.mask;
  std::uint64_t votes = 0;
  for (unsigned lane = 0; lane < warp_size; ++lane) {
    if (!(mask >> lane & 1)) continue;
    if (first + lane >= threads_ || !meets(one, fibres_[first + lane])) return false;
    if (fibres_[first + lane].value != 0) votes |= std::uint64_t{1} << lane;
  }
  for (unsigned lane = 0; lane < warp_size; ++lane) {
    if (!(mask >> lane & 1)) continue;
    Fibre& fibre = fibres_[first + lane];
    const bool given = fibre.source < warp_size && (mask >> fibre.source & 1);
    fibre.result = fibre.kind == Meeting::vote ? votes
                   : given                     ? fibres_[first + fibre.source].value
                                               : ~std::uint64_t{0};
    fibre.state = State::ready;
  }
  return true;
}

void Engine::report_stuck() const {
  std::ostringstream text;
  text << "block " << triple(blockIdx) << " is stuck";
  for (unsigned begin = 0, end; begin < threads_; begin = end) {
    const std::string what = describe(fibres_[begin]);
    for (end = begin + 1; end < threads_ && describe(fibres_[end]) == what;) ++end;
    text << (begin ? "; " : ": ") << "threads " << begin << " to " << end - 1 << " " << what;
  }
  throw Fault(text.str());
}

void Engine::resume(Fibre& fibre) {
  const unsigned number = fibre.number;
  threadIdx = {number % blockDim.x, number / blockDim.x % blockDim.y, number / blockDim.x / blockDim.y};
  current_ = &fibre;
  switch_to(host_, fibre.context);
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void Engine::enter() {
  Engine& engine = *running;
  const std::function<void()>* thread;
  {
    const Quiet quiet;
    arrive_from(engine.host_);
    acquire(&engine.start_token_);
    thread = engine.thread_;
  }
  std::exception_ptr failure;
  try {
    (*thread)();
  } catch (...) {
    failure = std::current_exception();
  }
  Fibre* fibre;
  {
    const Quiet quiet;
    if (failure) engine.failure_ = std::move(failure);
    fibre = engine.current_;
    fibre->state = State::ended;
    release(&engine.end_token_);
  }
  switch_to(fibre->context, engine.host_, true);
  std::abort();
}

std::uint64_t Engine::meet(Meeting kind, unsigned mask, std::uint64_t value, unsigned source, const Site& site) {
  Fibre* self;
  {
    const Quiet quiet;  // not for longer: the fibre may never come back
    self = current_;
    if (kind != Meeting::block_barrier && !(mask >> self->number % warp_size & 1))
      fault("a mask without the lane itself", site);
    self->kind = kind;
    self->mask = mask;
    self->value = value;
    self->source = source;
    self->site = site;
    self->token = token_for(*self);
    self->state = State::waiting;
    if (self->token) release(self->token);
  }
  switch_to(self->context, host_);
  const Quiet quiet;
  if (self->token) acquire(self->token);
  return self->result;
}

/// Barriers order memory; shuffles and votes do not.
char* Engine::token_for(const Fibre& self) {
  if (self.kind == Meeting::block_barrier) return &block_tokens_[barriers_ % 2];
  if (self.kind != Meeting::warp_barrier) return nullptr;
  const unsigned warp = self.number / warp_size;
  for (unsigned number = warp * warp_size; number < warp_end(warp * warp_size); ++number)
    if (meets(self, fibres_[number])) return fibres_[number].token;
  return &warp_tokens_[warp * ring + meetings_[warp]++ % ring];
}

/// What a function of the device needs: a kernel that runs.
Engine& engine() {
  if (!running) throw Fault("a function of the device, called outside of a kernel");
  return *running;
}

std::atomic<std::uint64_t> launches{0}, bytes_loaded{0}, bytes_stored{0}, accesses{0}, wide_accesses{0};
std::atomic<int> multiprocessor_count{2};
constinit thread_local cudaError_t last_error = cudaSuccess, coming_error = cudaSuccess;
constinit thread_local int calls_before_it = 0;

}  // namespace

void schedule(Schedule order, std::uint64_t seed) { setting = {order, seed}; }

void run_blocks_before(unsigned count) { end_of_blocks = count; }

Counters counters() { return {launches, bytes_loaded, bytes_stored, accesses, wide_accesses}; }

void reset_counters() {
  launches = 0;
  bytes_loaded = 0;
  bytes_stored = 0;
  accesses = 0;
  wide_accesses = 0;
}

void fault(const std::string& what, const Site& site) {
  const Quiet quiet;
  throw Fault("thread " + triple(threadIdx) + " of block " + triple(blockIdx) + ": " + what + ", at " + where(site));
}

void misaligned(const void* address, std::size_t bytes, const Site& site) {
  std::ostringstream text;
  text << "an access of " << bytes << " bytes to address " << address << ", which is not aligned to it";
  fault(text.str(), site);
}

std::uint64_t meet(Meeting kind, unsigned mask, std::uint64_t value, unsigned source, const Site& site) {
  return engine().meet(kind, mask, value, source, site);
}

unsigned thread_in_block() {
  const Quiet quiet;
  return engine().current().number;
}

void run(dim3 grid, dim3 block, const std::function<void()>& thread) {
  if (running) throw Fault("a launch out of a kernel");
  static thread_local Engine engine;
  struct Count {
    Count() { counted_here = {}; }
    ~Count() {
      ++launches;
      bytes_loaded += counted_here.bytes_loaded;
      bytes_stored += counted_here.bytes_stored;
      accesses += counted_here.accesses;
      wide_accesses += counted_here.wide_accesses;
    }
  } const count;
  engine.run(grid, block, thread);
}

void multiprocessors(int count) { multiprocessor_count = count; }

void fail(cudaError_t error, int after) {
  coming_error = error;
  calls_before_it = after;
}

cudaError_t outcome_of_call() {
  if (coming_error == cudaSuccess || calls_before_it-- > 0) return cudaSuccess;
  return remember(std::exchange(coming_error, cudaSuccess));
}

cudaError_t remember(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

cudaError_t check(const cudaLaunchConfig_t& config) {
  if (const cudaError_t error = outcome_of_call(); error != cudaSuccess) return error;
  const auto size = [](dim3 dims) { return std::uint64_t{dims.x} * dims.y * dims.z; };
  const bool fits = size(config.gridDim) > 0 && config.gridDim.y <= 65535 && config.gridDim.z <= 65535 &&
                    size(config.blockDim) > 0 && size(config.blockDim) <= 1024 && config.blockDim.z <= 64;
  if (!fits) return remember(cudaErrorInvalidConfiguration);
  return remember(config.dynamicSmemBytes == 0 ? cudaSuccess : cudaErrorInvalidValue);
}

}  // namespace outerloop::shim

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorInvalidConfiguration:
      return "cudaErrorInvalidConfiguration";
  }
  return "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
  }
  return "unrecognized error code";
}

cudaError_t cudaGetLastError() { return std::exchange(outerloop::shim::last_error, cudaSuccess); }

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return outerloop::shim::outcome_of_call();
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (device != 0 || attribute != cudaDevAttrMultiProcessorCount)
    return outerloop::shim::remember(cudaErrorInvalidValue);
  *value = outerloop::shim::multiprocessor_count;
  return outerloop::shim::outcome_of_call();
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t) {
  if (bytes > 0) std::memmove(to, from, bytes);
  return outerloop::shim::outcome_of_call();
}

cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t) {
  if (bytes > 0) std::memset(to, value, bytes);
  return outerloop::shim::outcome_of_call();
}
