#pragma once

/// Stands in for CUDA's header of this name, so that the host's compiler makes tests out of kernel sources as they are:
/// this folder comes first on the include path, fibres.cpp is linked, and a launch runs the kernel here and now, its
/// threads as fibres (see fibres.hpp). Compile kernels with -fno-strict-aliasing, as nvcc does not mind casts of
/// pointers.
///
/// It is stricter than a device where it can be. These are faults, thrown out of the launch: a barrier that not all
/// threads of the block reach, a warp operation whose mask names a lane that ended or waits elsewhere, and a load or
/// store by function that is not aligned to its size. Sanitizers see what kernels do: AddressSanitizer accesses out of
/// bounds, ThreadSanitizer those of two threads without a barrier between them.
///
/// It does not show: a thread that spins until another one acts (it hangs: only barriers and warp operations let
/// others run); shared memory used uninitialised (it holds zeros, or what the last block left); a fence that lacks, and
/// races between blocks, which ThreadSanitizer takes to follow each other, as they share their shared memory; speed.
/// ThreadSanitizer keeps apart 255 threads at a time and misses some races in blocks of as many: test smaller ones,
/// too.

#include "fibres.hpp"

#include <bit>
#include <cstddef>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

#if defined(__SANITIZE_THREAD__)
extern "C" {
void __tsan_read_range(void* address, unsigned long bytes);
void __tsan_write_range(void* address, unsigned long bytes);
}
#endif

#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __shared__ static thread_local  // blocks follow each other on one OS thread; other OS threads may launch, too

inline constexpr int warpSize = 32;

namespace outerloop::shim {

template <class T, class... Types>
inline constexpr bool one_of = (std::is_same_v<T, Types> || ...);

template <class T>
concept Shuffled = one_of<T, int, unsigned, long, unsigned long, long long, unsigned long long, float, double>;

/// What CUDA has loads and stores by function for.
template <class T>
concept Streamed = Shuffled<T> ||
    one_of<T, char, signed char, unsigned char, short, unsigned short, char2, char4, uchar2, uchar4, short2, short4,
           ushort2, ushort4, int2, int4, uint2, uint4, longlong2, ulonglong2, float2, float4, double2>;

template <class T>
std::uint64_t to_word(T value) {
  if constexpr (sizeof(T) == 4) {
    return std::bit_cast<std::uint32_t>(value);
  } else {
    return std::bit_cast<std::uint64_t>(value);
  }
}

template <class T>
T from_word(std::uint64_t word) {
  if constexpr (sizeof(T) == 4) {
    return std::bit_cast<T>(static_cast<std::uint32_t>(word));
  } else {
    return std::bit_cast<T>(word);
  }
}

template <Shuffled T>
T shuffle(unsigned mask, T value, unsigned source, const Site& site) {
  return from_word<T>(meet(Meeting::shuffle, mask, to_word(value), source, site));
}

inline unsigned lane() { return thread_in_block() % warpSize; }

[[noreturn]] void misaligned(const void* address, std::size_t bytes, const Site& site);

/// The counters are no kernel's business: ThreadSanitizer is not to see them.
template <class T>
__attribute__((no_sanitize("thread"))) inline void check_and_count(const T* address, std::uint64_t Counters::*bytes,
                                                                   const Site& site) {
  if (reinterpret_cast<std::uintptr_t>(address) % sizeof(T) != 0) misaligned(address, sizeof(T), site);
  counted_here.*bytes += sizeof(T);
  ++counted_here.accesses;
  if constexpr (sizeof(T) == 16) ++counted_here.wide_accesses;
}

/// What ThreadSanitizer is told of accesses by memcpy(): GCC does not tell it of those that it expands in place.
inline void reads([[maybe_unused]] const void* from, [[maybe_unused]] std::size_t bytes) {
#if defined(__SANITIZE_THREAD__)
  __tsan_read_range(const_cast<void*>(from), bytes);
#endif
}
inline void writes([[maybe_unused]] void* to, [[maybe_unused]] std::size_t bytes) {
#if defined(__SANITIZE_THREAD__)
  __tsan_write_range(to, bytes);
#endif
}

template <Streamed T>
T load(const T* from, const Site& site) {
  check_and_count(from, &Counters::bytes_loaded, site);
  reads(from, sizeof(T));
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

template <Streamed T>
void store(T* to, const T& value, const Site& site) {
  check_and_count(to, &Counters::bytes_stored, site);
  writes(to, sizeof(T));
  std::memcpy(to, &value, sizeof(T));
}

template <class T, class Change>
T atomic_change(T* at, Change change) {
  T old = __atomic_load_n(at, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(at, &old, change(old), false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
  }
  return old;
}

}  // namespace outerloop::shim

// Barriers, warp operations, atomic operations.

inline void __syncthreads(outerloop::shim::Site site = outerloop::shim::Site::current()) {
  outerloop::shim::meet(outerloop::shim::Meeting::block_barrier, 0, 0, 0, site);
}

inline void __syncwarp(unsigned mask = 0xffffffff, outerloop::shim::Site site = outerloop::shim::Site::current()) {
  outerloop::shim::meet(outerloop::shim::Meeting::warp_barrier, mask, 0, 0, site);
}

template <outerloop::shim::Shuffled T>
T __shfl_sync(unsigned mask, T value, int source, int width = warpSize,
              outerloop::shim::Site site = outerloop::shim::Site::current()) {
  const unsigned segment = outerloop::shim::lane() & ~static_cast<unsigned>(width - 1);
  return outerloop::shim::shuffle(mask, value, segment | (static_cast<unsigned>(source) & (width - 1)), site);
}

template <outerloop::shim::Shuffled T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = warpSize,
                   outerloop::shim::Site site = outerloop::shim::Site::current()) {
  const unsigned lane = outerloop::shim::lane();
  const bool inside = (lane & (width - 1)) + delta < static_cast<unsigned>(width);
  return outerloop::shim::shuffle(mask, value, inside ? lane + delta : lane, site);
}

template <outerloop::shim::Shuffled T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = warpSize,
                  outerloop::shim::Site site = outerloop::shim::Site::current()) {
  const unsigned lane = outerloop::shim::lane(), source = lane ^ static_cast<unsigned>(bits);
  const bool inside = source < (lane & ~static_cast<unsigned>(width - 1)) + static_cast<unsigned>(width);
  return outerloop::shim::shuffle(mask, value, inside ? source : lane, site);
}

inline unsigned __ballot_sync(unsigned mask, int predicate,
                              outerloop::shim::Site site = outerloop::shim::Site::current()) {
  return static_cast<unsigned>(outerloop::shim::meet(outerloop::shim::Meeting::vote, mask, predicate != 0, 0, site));
}

inline int __any_sync(unsigned mask, int predicate, outerloop::shim::Site site = outerloop::shim::Site::current()) {
  return __ballot_sync(mask, predicate, site) != 0;
}

inline int __all_sync(unsigned mask, int predicate, outerloop::shim::Site site = outerloop::shim::Site::current()) {
  return __ballot_sync(mask, predicate, site) == mask;
}

/// Nothing to do: atomic operations order all memory here, and so a fence that lacks is not found.
inline void __threadfence() {}

inline unsigned atomicInc(unsigned* at, unsigned last) {
  return outerloop::shim::atomic_change(at, [last](unsigned old) { return old >= last ? 0 : old + 1; });
}

template <class T>
requires outerloop::shim::one_of<T, int, unsigned, unsigned long long> T atomicAdd(T* at,
                                                                                   std::type_identity_t<T> value) {
  return outerloop::shim::atomic_change(at, [value](T old) {
    return static_cast<T>(static_cast<std::make_unsigned_t<T>>(old) + static_cast<std::make_unsigned_t<T>>(value));
  });
}

// Loads and stores by function.

#define OUTERLOOP_SHIM_LOAD(name)                                                        \
  template <outerloop::shim::Streamed T>                                                 \
  T name(const T* from, outerloop::shim::Site site = outerloop::shim::Site::current()) { \
    return outerloop::shim::load(from, site);                                            \
  }
#define OUTERLOOP_SHIM_STORE(name)                                                                                 \
  template <outerloop::shim::Streamed T>                                                                           \
  void name(T* to, std::type_identity_t<T> value, outerloop::shim::Site site = outerloop::shim::Site::current()) { \
    outerloop::shim::store(to, value, site);                                                                       \
  }
OUTERLOOP_SHIM_LOAD(__ldg)
OUTERLOOP_SHIM_LOAD(__ldca)
OUTERLOOP_SHIM_LOAD(__ldcg)
OUTERLOOP_SHIM_LOAD(__ldcs)
OUTERLOOP_SHIM_STORE(__stwb)
OUTERLOOP_SHIM_STORE(__stcg)
OUTERLOOP_SHIM_STORE(__stcs)
#undef OUTERLOOP_SHIM_LOAD
#undef OUTERLOOP_SHIM_STORE

// The host's side.

enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorInvalidConfiguration = 9 };
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount = 16 };
enum cudaMemcpyKind {
  cudaMemcpyHostToHost,
  cudaMemcpyHostToDevice,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice,
  cudaMemcpyDefault
};
using cudaStream_t = struct CUstream_st*;

struct cudaLaunchAttribute;
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  std::size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;  ///< not looked at
  unsigned numAttrs;
};

namespace outerloop::shim {

/// What cudaDevAttrMultiProcessorCount says; 2 if nothing was set.
void multiprocessors(int count);

/// Of this OS thread's calls of CUDA the next one fails with `error`, or the next but `after`.
void fail(cudaError_t error, int after = 0);

/// The error of a call that is to fail, and cudaSuccess of any other.
cudaError_t outcome_of_call();

/// cudaGetLastError() returns it, once.
cudaError_t remember(cudaError_t error);

/// Whether a device would take the launch. Shared memory of a size given at launch is not there.
cudaError_t check(const cudaLaunchConfig_t& config);

}  // namespace outerloop::shim

const char* cudaGetErrorName(cudaError_t error);
const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError();
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream = 0);
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream = 0);

template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  if (const cudaError_t error = outerloop::shim::check(*config); error != cudaSuccess) return error;
  const std::tuple<std::remove_cv_t<Parameters>...> parameters(std::forward<Arguments>(arguments)...);
  outerloop::shim::run(config->gridDim, config->blockDim, [&] { std::apply(kernel, parameters); });
  return cudaSuccess;
}
