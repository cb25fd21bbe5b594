/* A quota that statfs does not show: a library for LD_PRELOAD.
 *
 * The files below one directory may not take more bytes than the number in a file says; what would make them larger fails. While
 * that file is missing nothing is limited.
 *
 *   QUOTA_ROOT   the directory, absolute, without symlinks
 *   QUOTA_LIMIT  path of the file with the number, outside the directory
 *   QUOTA_ERRNO  number of the error; EDQUOT without it
 */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define MOST_FILES 100000
#define REAL(name)                 \
    static __typeof__(&name) real; \
    if (!real)                     \
    real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static ino_t linked[MOST_FILES]; /* files with several names, which count once */
static int linked_count;
static long long used;

static int count(const char *path, const struct stat *status, int kind, struct FTW *where) {
    (void)path, (void)where;
    if (kind != FTW_F)
        return 0;
    if (status->st_nlink > 1) {
        for (int i = 0; i < linked_count; i++)
            if (linked[i] == status->st_ino)
                return 0;
        if (linked_count < MOST_FILES)
            linked[linked_count++] = status->st_ino;
    }
    used += status->st_blocks * 512LL;
    return 0;
}

static long long limit(void) {
    char text[32] = {0};
    const char *path = getenv("QUOTA_LIMIT");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return -1;
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    return got > 0 ? atoll(text) : -1;
}

/* Whether a file that ends at `end` would be too much. */
static int is_over(int fd, off64_t end) {
    char link[64], path[PATH_MAX] = {0};
    const char *root = getenv("QUOTA_ROOT");
    struct stat status;
    long long most;
    int saved = errno, over = 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (root && length > 0 && !strncmp(path, root, strlen(root)) && (most = limit()) >= 0 && !fstat(fd, &status) &&
        end > status.st_blocks * 512LL) {
        pthread_mutex_lock(&mutex);
        linked_count = 0, used = 0;
        nftw(root, count, 32, FTW_PHYS);
        over = used + end - status.st_blocks * 512LL > most;
        pthread_mutex_unlock(&mutex);
    }
    errno = saved;
    return over;
}

static int error_number(void) {
    const char *wanted = getenv("QUOTA_ERRNO");
    return wanted ? atoi(wanted) : EDQUOT;
}

#define REFUSE_IF(condition)    \
    if (condition) {            \
        errno = error_number(); \
        return -1;              \
    }

static off64_t position(int fd) { return lseek64(fd, 0, SEEK_CUR); }

static off64_t total(const struct iovec *parts, int parts_count) {
    off64_t sum = 0;
    for (int i = 0; i < parts_count; i++)
        sum += parts[i].iov_len;
    return sum;
}

ssize_t write(int fd, const void *data, size_t size) {
    REAL(write);
    REFUSE_IF(position(fd) >= 0 && is_over(fd, position(fd) + size))
    return real(fd, data, size);
}

ssize_t writev(int fd, const struct iovec *parts, int parts_count) {
    REAL(writev);
    REFUSE_IF(position(fd) >= 0 && is_over(fd, position(fd) + total(parts, parts_count)))
    return real(fd, parts, parts_count);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    REAL(pwrite);
    REFUSE_IF(is_over(fd, at + size))
    return real(fd, data, size, at);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    REAL(pwrite64);
    REFUSE_IF(is_over(fd, at + size))
    return real(fd, data, size, at);
}

int fallocate(int fd, int how, off_t at, off_t size) {
    REAL(fallocate);
    REFUSE_IF(is_over(fd, at + size))
    return real(fd, how, at, size);
}

int fallocate64(int fd, int how, off64_t at, off64_t size) {
    REAL(fallocate64);
    REFUSE_IF(is_over(fd, at + size))
    return real(fd, how, at, size);
}

int posix_fallocate(int fd, off_t at, off_t size) {
    REAL(posix_fallocate);
    return is_over(fd, at + size) ? error_number() : real(fd, at, size);
}

int posix_fallocate64(int fd, off64_t at, off64_t size) {
    REAL(posix_fallocate64);
    return is_over(fd, at + size) ? error_number() : real(fd, at, size);
}
