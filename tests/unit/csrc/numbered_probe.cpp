// Values by number, used and forgotten by several threads. Exits with the number of the first line that is wrong.
#include <unistd.h>

#include <atomic>
#include <thread>

#include "host/numbered.h"

#define EXPECT(condition) \
  if (!(condition)) _exit(__LINE__)

namespace {

std::atomic<int> inside{0}, most{0}, alive{0};

struct Value {
  Value() { ++alive; }
  ~Value() { --alive; }
};

void stay(const Value&) {
  const int here = ++inside;
  if (here > most) most = here;
  usleep(200 * 1000);
  --inside;
}

}  // namespace

int main() {
  precast::Numbered<Value> all;
  const int64_t first = all.add(new Value), second = all.add(new Value);
  EXPECT(first == 1 && second == 2);
  EXPECT(!all.use(3, stay) && !all.use(0, stay) && !all.use(-1, stay));

  // Two calls of one value, one after the other.
  std::thread one([&] { all.use(first, stay); }), two([&] { all.use(first, stay); });
  one.join(), two.join();
  EXPECT(most == 1);

  // Two calls of two values, at the same time.
  std::thread three([&] { all.use(first, stay); }), four([&] { all.use(second, stay); });
  three.join(), four.join();
  EXPECT(most == 2);

  // A value that is forgotten while it is used lives until then.
  std::thread five([&] { all.use(second, [](const Value& value) { stay(value), stay(value); }); });
  while (inside == 0) usleep(1000);
  EXPECT(all.forget(second) && alive == 2);
  EXPECT(!all.forget(second) && !all.use(second, stay));
  five.join();
  EXPECT(alive == 1);
  EXPECT(all.forget(first) && alive == 0);
  EXPECT(all.add(new Value) == 3);
  return 0;
}
