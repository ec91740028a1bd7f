/*
 * Loaded before the C library: counts the calls that change files below one folder, and has the n-th of them fail.
 *
 * Either the process ends there, as if it were killed (a write is half done), or that call and all later ones that
 * need room fail with ENOSPC.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { END = 1, FULL = 2 };

static char folder[PATH_MAX];
static long calls, at;
static int mode;

void fail_at(const char *below, long n, int how) {
    strncpy(folder, below, sizeof folder - 1);
    calls = 0, at = n, mode = how;
}

long calls_so_far(void) { return calls; }

static int below(int directory, const char *path) {
    char link[64], name[PATH_MAX];
    ssize_t length;
    if (!folder[0]) return 0;
    if (path && path[0] == '/') return strncmp(path, folder, strlen(folder)) == 0;
    if (directory < 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
    length = readlink(link, name, sizeof name - 1);
    return length > 0 && (name[length] = 0, strncmp(name, folder, strlen(folder)) == 0);
}

/* Whether the call must fail for want of room. Does not return where the process ends. */
static int fails(int directory, const char *path, int needs_room) {
    if (!below(directory, path)) return 0;
    calls++;
    if (mode == END && calls == at) _exit(99);
    if (mode == FULL && calls >= at && needs_room) return errno = ENOSPC, 1;
    return 0;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#define OPENING(name)                                                                       \
    int name(const char *path, int flags, ...) {                                            \
        va_list rest;                                                                       \
        va_start(rest, flags);                                                              \
        int permissions = flags & O_CREAT ? va_arg(rest, int) : 0;                          \
        va_end(rest);                                                                       \
        if (flags & (O_WRONLY | O_RDWR) && fails(-1, path, flags & O_CREAT)) return -1;     \
        return REAL(name)(path, flags, permissions);                                        \
    }
OPENING(open)
OPENING(open64)

#define OPENING_AT(name)                                                                    \
    int name(int directory, const char *path, int flags, ...) {                             \
        va_list rest;                                                                       \
        va_start(rest, flags);                                                              \
        int permissions = flags & O_CREAT ? va_arg(rest, int) : 0;                          \
        va_end(rest);                                                                       \
        if (flags & (O_WRONLY | O_RDWR) && fails(directory, path, flags & O_CREAT)) return -1; \
        return REAL(name)(directory, path, flags, permissions);                             \
    }
OPENING_AT(openat)
OPENING_AT(openat64)

FILE *fopen(const char *path, const char *how) {
    if (how[0] != 'r' && fails(-1, path, 1)) return NULL;
    return REAL(fopen)(path, how);
}

FILE *fopen64(const char *path, const char *how) {
    if (how[0] != 'r' && fails(-1, path, 1)) return NULL;
    return REAL(fopen64)(path, how);
}

ssize_t write(int file, const void *data, size_t size) {
    if (mode == END && calls + 1 == at && below(file, NULL)) REAL(write)(file, data, size / 2);
    return fails(file, NULL, 1) ? -1 : REAL(write)(file, data, size);
}

ssize_t writev(int file, const struct iovec *parts, int count) {
    if (mode == END && calls + 1 == at && below(file, NULL)) REAL(writev)(file, parts, 1);
    return fails(file, NULL, 1) ? -1 : REAL(writev)(file, parts, count);
}

ssize_t pwrite64(int file, const void *data, size_t size, off64_t place) {
    return fails(file, NULL, 1) ? -1 : REAL(pwrite64)(file, data, size, place);
}

int ftruncate64(int file, off64_t size) { return fails(file, NULL, 1) ? -1 : REAL(ftruncate64)(file, size); }

int fsync(int file) { return fails(file, NULL, 0) ? -1 : REAL(fsync)(file); }

int mkdir(const char *path, mode_t permissions) {
    return fails(-1, path, 1) ? -1 : REAL(mkdir)(path, permissions);
}

int rename(const char *from, const char *to) { return fails(-1, from, 0) ? -1 : REAL(rename)(from, to); }

int unlink(const char *path) { return fails(-1, path, 0) ? -1 : REAL(unlink)(path); }

int rmdir(const char *path) { return fails(-1, path, 0) ? -1 : REAL(rmdir)(path); }

int unlinkat(int directory, const char *path, int flags) {
    return fails(directory, path, 0) ? -1 : REAL(unlinkat)(directory, path, flags);
}
