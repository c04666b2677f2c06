// A mutex, and a scope that holds it. <mutex> would take longer to compile than the files that need one, and in a
// forked child it stays locked for ever if a thread of the parent held it.
#pragma once

#include <time.h>
#include <unistd.h>

#include <atomic>

namespace precast {

// Holds the id of the process that locked it. A holder of another process is a thread of the parent, at the moment of
// the fork: it does not exist here, so the first thread that asks takes its place.
class Mutex {
 public:
  void lock() {
    const pid_t self = getpid();
    pid_t holder = 0;
    while (!holder_.compare_exchange_strong(holder, self, std::memory_order_acquire)) {
      if (holder != self) continue;  // expects that holder now
      const timespec moment = {0, 50 * 1000};
      nanosleep(&moment, nullptr);
      holder = 0;
    }
  }
  void unlock() { holder_.store(0, std::memory_order_release); }

 private:
  std::atomic<pid_t> holder_{0};
};

class Lock {
 public:
  explicit Lock(Mutex& mutex) : mutex_(mutex) { mutex_.lock(); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
  ~Lock() { mutex_.unlock(); }

 private:
  Mutex& mutex_;
};

}  // namespace precast
