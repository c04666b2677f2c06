// Prints what in_cluster chooses for many rows on several GPUs, one line each, for test_row_policy.py.
#include <stdio.h>

#include "gpu/row_launch.h"

namespace precast {
namespace {
int processors, shared_bytes;
}
int multiprocessors(int) { return processors; }
int block_shared_bytes(int) { return shared_bytes; }
int resident_clusters(KernelFamily&, int, int, const LaunchShape&) { return 1; }
}  // namespace precast

int main() {
  using namespace precast;
  const auto print = [](int64_t rows, const ClusterForm& form, int64_t vectors) {
    const RowKernel chosen = in_cluster(0, rows, vectors, form, 0);
    printf("%d %lld %d %lld %u %u %u\n", shared_bytes, static_cast<long long>(rows), form.each,
           static_cast<long long>(vectors), chosen.threads, chosen.cluster, chosen.shared);
  };
  processors = 132;
  shared_bytes = 227 * 1024;
  print(32, {8, 1, 1024, 2, true}, 18992);
  print(2048, {8, 1, 1024, 2, true}, 12544);
  for (int gpu = 0; gpu < 2; ++gpu) {
    processors = gpu == 0 ? 132 : 84;
    shared_bytes = gpu == 0 ? 227 * 1024 : 99 * 1024;
    for (int64_t rows : {1, 2, 16, 64, 131, 133, 1000, 100000}) {
      for (const ClusterForm& form :
           {ClusterForm{8, 1, 1024, 2, true}, {4, 2, 512, 2}, {4, 2, 1024, 8}, {4, 3, 1024, 8}}) {
        const int64_t most = form.each * 8 * 1024;
        for (int64_t vectors = 1; vectors <= most; vectors += vectors < 64 ? 1 : vectors / 61) {
          print(rows, form, vectors);
        }
      }
    }
  }
  return 0;
}
