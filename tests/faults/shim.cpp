// A file system with the faults of real ones, between a process and the C library (LD_PRELOAD). FAULT_ROOT is the
// folder it is about; each other variable is one fault. Every child of the process has them too.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/stat.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

struct stat;

namespace {

const char* set(const char* name) { return getenv(name); }

bool inside(const char* path) {
  const char* root = set("FAULT_ROOT");
  char folder[4096];
  if (root && path && path[0] != '/') path = getcwd(folder, sizeof(folder));
  return root && path && strncmp(path, root, strlen(root)) == 0;
}

bool ends_with(const char* path, const char* suffix) {
  const size_t n = strlen(path), m = strlen(suffix);
  return n >= m && strcmp(path + n - m, suffix) == 0;
}

// FAULT_LATE=seconds: what was made so recently, by anybody, is not there yet (NFS caches that a name is missing).
// Only finished libraries: a client sees its own staging folder, and objects would only cost a compile.
bool late(const char* path) {
  const char* seconds = set("FAULT_LATE");
  if (!seconds || !inside(path)) return false;
  const char* v1 = strstr(path, "/v1/");
  if (!v1 || v1[4] == '.' || !v1[4] || strncmp(v1, "/v1/objects", 11) == 0) return false;
  struct statx facts;
  if (syscall(SYS_statx, AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, STATX_CTIME, &facts) != 0) return false;
  struct timespec now;
  syscall(SYS_clock_gettime, CLOCK_REALTIME, &now);
  if (now.tv_sec - facts.stx_ctime.tv_sec >= atoi(seconds)) return false;
  errno = ENOENT;
  return true;
}

// FAULT_FULL=suffix: files of that name get ENOSPC from the kernel itself when they are written.
const char* redirected(const char* path, bool writing) {
  const char* suffix = set("FAULT_FULL");
  if (writing && suffix && inside(path) && ends_with(path, suffix)) return "/dev/full";
  // FAULT_CPUINFO=file: the processor that this file describes.
  if (set("FAULT_CPUINFO") && path && strcmp(path, "/proc/cpuinfo") == 0) return set("FAULT_CPUINFO");
  return path;
}

// FAULT_READONLY: nothing can be made, written or renamed.
bool read_only(const char* path) {
  if (!set("FAULT_READONLY") || !inside(path)) return false;
  errno = EROFS;
  return true;
}

template <class F>
F real(const char* name) {
  return reinterpret_cast<F>(dlsym(RTLD_NEXT, name));
}

int open_file(const char* name, const char* path, int flags, mode_t mode) {
  const bool writing = (flags & O_ACCMODE) != O_RDONLY;
  if (late(path) || (writing && read_only(path))) return -1;
  return real<int (*)(const char*, int, ...)>(name)(redirected(path, writing), flags, mode);
}

FILE* open_stream(const char* name, const char* path, const char* mode) {
  const bool writing = strpbrk(mode, "wa+") != nullptr;
  if (late(path) || (writing && read_only(path))) return nullptr;
  return real<FILE* (*)(const char*, const char*)>(name)(redirected(path, writing), mode);
}

int look(const char* name, const char* path, struct stat* out) {
  if (late(path)) return -1;
  return real<int (*)(const char*, struct stat*)>(name)(path, out);
}

}  // namespace

#define OPEN(name)                                        \
  extern "C" int name(const char* path, int flags, ...) { \
    va_list list;                                         \
    va_start(list, flags);                                \
    const mode_t mode = va_arg(list, mode_t);             \
    va_end(list);                                         \
    return open_file(#name, path, flags, mode);           \
  }
OPEN(open)
OPEN(open64)

extern "C" FILE* fopen(const char* path, const char* mode) { return open_stream("fopen", path, mode); }
extern "C" FILE* fopen64(const char* path, const char* mode) { return open_stream("fopen64", path, mode); }
extern "C" int stat(const char* path, struct stat* out) { return look("stat", path, out); }
extern "C" int stat64(const char* path, struct stat* out) { return look("stat64", path, out); }
extern "C" int lstat(const char* path, struct stat* out) { return look("lstat", path, out); }
extern "C" int lstat64(const char* path, struct stat* out) { return look("lstat64", path, out); }

extern "C" int fstatat(int folder, const char* path, struct stat* out, int flags) {
  if (late(path)) return -1;
  return real<int (*)(int, const char*, struct stat*, int)>("fstatat")(folder, path, out, flags);
}

extern "C" int access(const char* path, int mode) {
  if (late(path) || ((mode & W_OK) && read_only(path))) return -1;
  return real<int (*)(const char*, int)>("access")(path, mode);
}

extern "C" int mkdir(const char* path, mode_t mode) {
  if (read_only(path)) return -1;
  return real<int (*)(const char*, mode_t)>("mkdir")(path, mode);
}

// FAULT_RENAME=errno: nothing is renamed into the root.
extern "C" int rename(const char* from, const char* to) {
  if (read_only(to)) return -1;
  if (set("FAULT_RENAME") && inside(to)) {
    errno = atoi(set("FAULT_RENAME"));
    return -1;
  }
  return real<int (*)(const char*, const char*)>("rename")(from, to);
}

// FAULT_FLOCK=0: every lock is given at once, to everybody; an errno: there are none.
extern "C" int flock(int descriptor, int operation) noexcept {
  const char* answer = set("FAULT_FLOCK");
  if (!answer) return real<int (*)(int, int)>("flock")(descriptor, operation);
  errno = atoi(answer);
  return errno ? -1 : 0;
}

// FAULT_CLOCK: the time of day goes back by a minute whenever it is asked for.
extern "C" int clock_gettime(clockid_t clock, struct timespec* out) noexcept {
  static std::atomic<long> asked{0};
  const int status = static_cast<int>(syscall(SYS_clock_gettime, clock, out));
  if (set("FAULT_CLOCK") && clock == CLOCK_REALTIME) out->tv_sec -= 60 * ++asked;
  return status;
}
