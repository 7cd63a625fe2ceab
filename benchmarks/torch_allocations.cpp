// Counts the bytes that torch allocates on the CPU, on every thread; preloaded, so that its symbols come first.

#include <dlfcn.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <unordered_map>

namespace {

std::mutex mutex;
std::int64_t live = 0, peak = 0;
std::chrono::microseconds pause_after_wait{0};

// Never destroyed: memory is released until the process ends.
std::unordered_map<void*, std::size_t>& sizes() {
  static auto* map = new std::unordered_map<void*, std::size_t>;
  return *map;
}

// torch loads its libraries with local symbols, which RTLD_NEXT does not find.
template <typename Function>
Function original(const char* library, const char* name) {
  return reinterpret_cast<Function>(dlsym(dlopen(library, RTLD_LAZY | RTLD_NOLOAD), name));
}

}  // namespace

namespace c10 {

void* alloc_cpu(std::size_t size) {
  static auto allocate = original<void* (*)(std::size_t)>("libc10.so", "_ZN3c109alloc_cpuEm");
  void* pointer = allocate(size);
  std::lock_guard<std::mutex> lock(mutex);
  if (pointer != nullptr) {
    sizes()[pointer] = size;
    live += size;
    peak = live > peak ? live : peak;
  }
  return pointer;
}

void free_cpu(void* pointer) {
  static auto release = original<void (*)(void*)>("libc10.so", "_ZN3c108free_cpuEPv");
  {
    std::lock_guard<std::mutex> lock(mutex);
    auto found = sizes().find(pointer);
    if (found != sizes().end()) {
      live -= found->second;
      sizes().erase(found);
    }
  }
  release(pointer);
}

}  // namespace c10

namespace c10d {

struct Work {
  bool wait(std::chrono::milliseconds timeout);
};

// A thread of gloo releases the tensors of a collective after it has told that the collective has ended.
bool Work::wait(std::chrono::milliseconds timeout) {
  using Wait = bool (*)(Work*, std::chrono::milliseconds);
  static auto original_wait =
      original<Wait>("libtorch_cpu.so", "_ZN4c10d4Work4waitENSt6chrono8durationIlSt5ratioILl1ELl1000EEEE");
  bool done = original_wait(this, timeout);
  if (pause_after_wait.count() > 0) {
    std::this_thread::sleep_for(pause_after_wait);
  }
  return done;
}

}  // namespace c10d

extern "C" {

std::int64_t composer_live() {
  std::lock_guard<std::mutex> lock(mutex);
  return live;
}

std::int64_t composer_peak() {
  std::lock_guard<std::mutex> lock(mutex);
  return peak;
}

void composer_mark() {
  std::lock_guard<std::mutex> lock(mutex);
  peak = live;
}

void composer_pause(std::int64_t microseconds) { pause_after_wait = std::chrono::microseconds(microseconds); }

}
