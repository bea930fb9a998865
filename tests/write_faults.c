// Preloaded library that fails, or ends the process at, the nth change of a file below a folder.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[4096];
static long count, fails_at;
static int error;

// error 0 ends the process.
void arm(const char *below, long at, int with) {
    snprintf(folder, sizeof folder, "%s", below);
    count = 0, fails_at = at, error = with;
}

long disarm(void) {
    folder[0] = 0;
    return count;
}

static int fails(const char *path) {
    if (!folder[0] || !path || strncmp(path, folder, strlen(folder)) || ++count != fails_at) return 0;
    if (!error) _exit(77);
    errno = error;
    return 1;
}

static int fails_fd(int fd) {
    char link[64], path[4096];
    if (!folder[0]) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return fails(path);
}

#define REAL(name) static __typeof__(name) *real; if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)
#define OPEN(name, before, given, path) \
    int name(before const char *path, int flags, ...) { \
        REAL(name); \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
        va_end(rest); \
        if ((flags & (O_WRONLY | O_RDWR | O_CREAT)) && fails(path)) return -1; \
        return real(given path, flags, mode); \
    }
#define NOTHING
#define AT int at,
#define GIVEN at,
OPEN(open, NOTHING, NOTHING, path)
OPEN(open64, NOTHING, NOTHING, path)
OPEN(openat, AT, GIVEN, path)
OPEN(openat64, AT, GIVEN, path)

ssize_t write(int fd, const void *data, size_t size) { REAL(write); return fails_fd(fd) ? -1 : real(fd, data, size); }
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    REAL(pwrite64);
    return fails_fd(fd) ? -1 : real(fd, data, size, at);
}
int ftruncate64(int fd, off64_t size) { REAL(ftruncate64); return fails_fd(fd) ? -1 : real(fd, size); }
int fsync(int fd) { REAL(fsync); return fails_fd(fd) ? -1 : real(fd); }
int rename(const char *from, const char *to) { REAL(rename); return fails(to) ? -1 : real(from, to); }
int mkdir(const char *path, mode_t mode) { REAL(mkdir); return fails(path) ? -1 : real(path, mode); }
