// A mutex and a scoped lock. Including <mutex> would take longer than compiling the files that need one. A std::mutex
// also stays locked for ever in a forked child if a thread of the parent held it.
#pragma once

#include <time.h>
#include <unistd.h>

#include <atomic>

namespace precast {

// Holds the id of the process that locked it. A holder from another process is a thread of the parent at the time of
// the fork. That thread does not exist here, so the first thread that asks takes the lock over.
class Mutex {
 public:
  void lock() {
    const pid_t self = getpid();
    pid_t holder = 0;
    while (!holder_.compare_exchange_strong(holder, self, std::memory_order_acquire)) {
      if (holder != self) continue;  // compare_exchange has stored the holder; expect it next time
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
