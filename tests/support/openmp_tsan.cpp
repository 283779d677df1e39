#include <dlfcn.h>

/// libgomp is not built for the thread sanitizer, which so cannot see that a parallel region begins after all that its
/// caller did before, and ends before all that its caller does next. This stands in front of libgomp's entry point, for
/// our code and for libtorch's, and says so. Linked into the tests of a thread sanitizer build only.

extern "C" void __tsan_acquire(void* sync);
extern "C" void __tsan_release(void* sync);

namespace {

/// Two addresses to synchronise on: with one, a worker that starts late would seem to follow one that ended early.
struct Region {
  void (*body)(void*);
  void* data;
  char begin, end;
};

void run_as_worker(void* pointer) {
  auto* region = static_cast<Region*>(pointer);
  __tsan_acquire(&region->begin);
  region->body(region->data);
  __tsan_release(&region->end);
}

}  // namespace

extern "C" void GOMP_parallel(void (*body)(void*), void* data, unsigned threads, unsigned flags) {
  using Parallel = void (*)(void (*)(void*), void*, unsigned, unsigned);
  static const auto libgomp = reinterpret_cast<Parallel>(dlsym(RTLD_NEXT, "GOMP_parallel"));
  Region region{body, data, {}, {}};
  __tsan_release(&region.begin);
  libgomp(run_as_worker, &region, threads, flags);
  __tsan_acquire(&region.end);
}
