// What an op keeps from one call to the next, each by a number that is never given twice: Python has the number, and
// says when it is to be forgotten.
#pragma once

#include <stdint.h>

#include "lock.h"

namespace precast {

template <class Value>
class Numbered {
 public:
  // Takes the value over.
  int64_t add(Value* value) {
    const Lock lock(mutex_);
    head_ = new Entry{value, ++last_, head_, 1};
    return last_;
  }

  // Calls body(value); false if there is none of that number. One call at a time for each value.
  template <class Body>
  bool use(int64_t number, const Body& body) {
    Entry* const entry = hold(number);
    if (entry == nullptr) return false;
    const Held held = {*this, entry};
    const Lock lock(entry->busy);
    body(*entry->value);
    return true;
  }

  // False if there is none of that number. A value that is in use goes when that is done.
  bool forget(int64_t number) {
    Entry* const entry = hold(number);
    if (entry == nullptr) return false;
    {
      const Lock lock(mutex_);
      if (entry->number != 0) --entry->holders;
      entry->number = 0;  // nobody finds it any more
    }
    release(entry);
    return true;
  }

 private:
  struct Entry {
    Value* value;
    int64_t number;
    Entry* next;
    int holders;  // this list is one
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
