// Values that an op keeps between calls, identified by numbers that are never reused. Python holds the number and tells
// us when to forget the value.
#pragma once

#include <stdint.h>

#include "lock.h"

namespace precast {

template <class Value>
class Numbered {
 public:
  // Takes ownership of the value.
  int64_t add(Value* value) {
    const Lock lock(mutex_);
    head_ = new Entry{value, ++last_, head_, 1};
    return last_;
  }

  // Calls body(value). False if no value has that number. Calls for the same value run one at a time.
  template <class Body>
  bool use(int64_t number, const Body& body) {
    Entry* const entry = hold(number);
    if (entry == nullptr) return false;
    const Held held = {*this, entry};
    const Lock lock(entry->busy);
    body(*entry->value);
    return true;
  }

  // False if no value has that number. A value in use is deleted when its last user is done.
  bool forget(int64_t number) {
    Entry* const entry = hold(number);
    if (entry == nullptr) return false;
    {
      const Lock lock(mutex_);
      if (entry->number != 0) --entry->holders;
      entry->number = 0;  // cannot be found from here on
    }
    release(entry);
    return true;
  }

 private:
  struct Entry {
    Value* value;
    int64_t number;
    Entry* next;
    int holders;  // including this list
    Mutex busy{};
  };

  struct Held {
    Numbered& all;
    Entry* entry;
    ~Held() { all.release(entry); }
  };

  Entry* hold(int64_t number) {
    const Lock lock(mutex_);
    for (Entry* entry = number > 0 ? head_ : nullptr; entry != nullptr; entry = entry->next) {
      if (entry->number != number) continue;
      ++entry->holders;
      return entry;
    }
    return nullptr;
  }

  void release(Entry* entry) {
    {
      const Lock lock(mutex_);
      if (--entry->holders > 0) return;
      Entry** place = &head_;
      while (*place != entry) place = &(*place)->next;
      *place = entry->next;
    }
    delete entry->value;
    delete entry;
  }

  Mutex mutex_;
  Entry* head_ = nullptr;
  int64_t last_ = 0;
};

}  // namespace precast
