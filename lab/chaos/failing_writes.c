/* Library for LD_PRELOAD: while the file $EVENPACE_FAILING exists, writes to files below $EVENPACE_FAILING_BELOW,
   and their fsync, fail with EIO, as on a disk that breaks; each failure adds a byte to the former file. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static int fails(int descriptor) {
    const char *flag = getenv("EVENPACE_FAILING"), *below = getenv("EVENPACE_FAILING_BELOW");
    int before = errno, note;
    char link[64], path[4096];
    ssize_t length;

    if (!flag || !below || access(flag, F_OK)) {
        errno = before;
        return 0;
    }
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    length = readlink(link, path, sizeof path - 1);
    errno = before;
    if (length < 0) return 0;
    path[length] = 0;
    if (strncmp(path, below, strlen(below))) return 0;
    if ((note = open(flag, O_WRONLY | O_APPEND)) >= 0) {  /* not with O_CREAT: it may be over by now */
        syscall(SYS_write, note, "x", 1);
        close(note);
    }
    errno = EIO;
    return 1;
}

#define FAILING(type, name, parameters, arguments)                 \
    type name parameters {                                         \
        static type(*next) parameters;                             \
        if (!next) next = (type(*) parameters)dlsym(RTLD_NEXT, #name); \
        return fails(fd) ? -1 : next arguments;                    \
    }

FAILING(ssize_t, write, (int fd, const void *data, size_t count), (fd, data, count))
FAILING(ssize_t, pwrite, (int fd, const void *data, size_t count, off_t at), (fd, data, count, at))
FAILING(ssize_t, pwrite64, (int fd, const void *data, size_t count, off64_t at), (fd, data, count, at))
FAILING(ssize_t, writev, (int fd, const struct iovec *pieces, int count), (fd, pieces, count))
FAILING(int, ftruncate, (int fd, off_t size), (fd, size))
FAILING(int, ftruncate64, (int fd, off64_t size), (fd, size))
FAILING(int, fsync, (int fd), (fd))
FAILING(int, fdatasync, (int fd), (fd))
