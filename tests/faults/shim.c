/* Faults in the system calls of one process: a library for LD_PRELOAD.
 *
 * Every call that changes something below one directory gets a number, over all threads of the process. At number N the process
 * is killed (before the call, or after it), or gets SIGUSR1, or the call fails, or it writes half of what it was given. It sees whatever goes
 * through libc: Python, and SQLite too. It does not see raw system calls, io_uring, stores to a mapping, and what libc does inside
 * itself (stdio).
 *
 * By environment, for a whole process:
 *   FAULT_ROOT    the directory, absolute, without symlinks
 *   FAULT_MODE    count | kill-before | kill-after | error | short | signal | hook (see fault_hook)
 *   FAULT_AT      N, from 1; without it nothing is hit
 *   FAULT_ERRNO   number of the error; EIO without it
 *   FAULT_STICKY  1: every call from N on
 *   FAULT_FAMILIES  sum of the families below that are counted; without it every mutating one
 *   FAULT_LOG     a file outside the directory: "number family name path [other path]" a line; a hit ends in " *"
 * or by fault_arm() for a while, which is what a fork server does. After fault_cut_power() the process is not killed: its filesystem
 * is shut down instead, and it goes on, as far as it gets.
 */

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

/* glibc makes the 64-bit names macros of the others, or the other way round, when told to; here they must stay two functions. */
#ifdef _FILE_OFFSET_BITS
#error "build this without _FILE_OFFSET_BITS"
#endif

enum family {
    WRITE = 1,    /* write and its kin, copy_file_range, sendfile */
    CREATE = 2,   /* open that makes or empties a file, mkdir, symlink, mknod */
    SYNC = 4,     /* fsync, fdatasync, sync_file_range, syncfs */
    NAME = 8,     /* rename, unlink, rmdir */
    META = 16,    /* chmod, chown, times, lengths, fallocate */
    LINK = 32,    /* link */
    MUTATING = 63,
    OPEN = 64,    /* open of what is there */
    LOCK = 128,   /* flock, record locks */
    CLOSE = 256,  /* made, and then reported as failed: so the kernel does it */
    READ = 512,
    LOOK = 1024,  /* stat and its kin, access, readlink, opendir */
};

enum mode { OFF, COUNT, KILL_BEFORE, KILL_AFTER, ERROR, SHORT, SIGNAL, HOOK };

enum verdict { PASS, FAIL, DIE_AFTER, HALF };

static volatile int mode = OFF;
static char root[PATH_MAX];
static size_t root_length;
static long at, sticky, error_number = EIO;
static unsigned families = MUTATING;
static int log_fd = -1;
static long count, hits, second_syncs;
static int skip_syncs;
static int cut_fd = -1;
static unsigned cut_flags;
static void (*hook)(const char *path, const char *other);
static int log_raw;
static __thread int call_flags; /* of the call that is about to be judged, for the log */
#define FS_IOC_SHUTDOWN 0x8004587DUL /* of linux/fs.h, which older headers do not have */

/* Files whose fsync was made to fail. A second fsync of one of them is a bug by itself: the kernel says success, and the bytes are
 * gone. The birth time tells a new file from an old one whose inode number it got. SQLite's own files are left out: the catalog
 * can be rebuilt. */
struct identity {
    unsigned major, minor;
    unsigned long long ino;
    long long born_s;
    unsigned born_ns;
};
static struct identity failed[64];
static int failed_count;
static pthread_mutex_t failed_mutex = PTHREAD_MUTEX_INITIALIZER;

#define REAL(name)                                                  \
    static __typeof__(&name) real;                                  \
    if (!real)                                                      \
    real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static ssize_t real_write(int fd, const void *data, size_t size) {
    REAL(write);
    return real(fd, data, size);
}

static ssize_t real_readlink(const char *path, char *out, size_t size) {
    REAL(readlink);
    return real(path, out, size);
}

static void die(void) {
    if (cut_fd >= 0) {
        int saved = errno;
        if (ioctl(cut_fd, FS_IOC_SHUTDOWN, &cut_flags))
            abort();
        errno = saved;
        return;
    }
    kill(getpid(), SIGKILL);
    for (;;)
        pause();
}

/* ------------------------------------------------------------------ where a call goes */

/* Take ".", ".." and double slashes out of an absolute path, in place, without asking the disk. */
static void normalize(char *path) {
    char *out = path, *in = path;
    while (*in) {
        while (*in == '/')
            in++;
        char *end = strchrnul(in, '/');
        size_t length = (size_t)(end - in);
        if (length == 0 || (length == 1 && in[0] == '.')) {
            /* nothing */
        } else if (length == 2 && in[0] == '.' && in[1] == '.') {
            while (out > path && *--out != '/')
                ;
        } else {
            *out++ = '/';
            memmove(out, in, length);
            out += length;
        }
        in = end;
    }
    if (out == path)
        *out++ = '/';
    *out = '\0';
}

static void path_of_fd(int fd, char *out) {
    char link[64];
    int saved = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = real_readlink(link, out, PATH_MAX - 1);
    out[length < 0 ? 0 : length] = '\0';
    errno = saved;
}

static void path_at(int dirfd, const char *path, char *out) {
    int saved = errno;
    out[0] = '\0';
    if (path && path[0] == '/') {
        snprintf(out, PATH_MAX, "%s", path);
    } else {
        if (dirfd != AT_FDCWD)
            path_of_fd(dirfd, out);
        else if (!getcwd(out, PATH_MAX))
            out[0] = '\0';
        size_t length = strlen(out);
        if (path && path[0])
            snprintf(out + length, PATH_MAX - length, "/%s", path);
    }
    if (out[0] == '/')
        normalize(out);
    errno = saved;
}

static int below_root(const char *path) {
    return strncmp(path, root, root_length) == 0 && (path[root_length] == '/' || path[root_length] == '\0');
}

/* ------------------------------------------------------------------ what happens to it */

/* What the kernel is given, for those who ask for it: "dirfd flags path" and, of two paths, "dirfd path", after tabs. */
struct raw {
    int from_fd, to_fd;
    const char *from, *to;
};

static void log_call(long number, unsigned family, const char *name, const char *path, const char *other, int hit,
                     const struct raw *raw) {
    char line[5 * PATH_MAX], given[2 * PATH_MAX + 64] = "";
    int saved = errno;
    const char *tail = path[root_length] == '/' && below_root(path) ? path + root_length + 1 : path;
    const char *second = other ? other : "";
    if (other && below_root(other) && other[root_length] == '/')
        second = other + root_length + 1;
    if (log_raw && raw && raw->from) {
        int size = snprintf(given, sizeof given, "\t%d %x %s", raw->from_fd, (unsigned)call_flags, raw->from);
        if (raw->to)
            snprintf(given + size, sizeof given - (size_t)size, "\t%d %s", raw->to_fd, raw->to);
    }
    int length = snprintf(line, sizeof line, "%ld %u %s %s%s%s%s%s\n", number, family, name, tail, other ? " " : "", second,
                          hit ? " *" : "", given);
    if (length > 0)
        (void)!real_write(log_fd, line, (size_t)length);
    errno = saved;
}

static enum verdict judge(unsigned family, const char *name, const char *path, const char *other, const struct raw *raw) {
    if (!(families & family) || !(below_root(path) || (other && below_root(other))))
        return PASS;
    long number = __atomic_add_fetch(&count, 1, __ATOMIC_SEQ_CST);
    int hit = at > 0 && mode != COUNT && (number == at || (sticky && number > at));
    if (hit)
        __atomic_add_fetch(&hits, 1, __ATOMIC_SEQ_CST);
    if (log_fd >= 0)
        log_call(number, family, name, path, other, hit, raw);
    if (!hit)
        return PASS;
    switch (mode) {
    case KILL_BEFORE:
        die();
        return PASS;
    case KILL_AFTER:
        return DIE_AFTER;
    case SHORT:
        return HALF;
    case SIGNAL: /* Python runs its handler after the call: the handler of C only sets a flag */
        kill(getpid(), SIGUSR1);
        return PASS;
    case HOOK: {
        int saved = errno;
        mode = OFF; /* what the hook calls is its own affair */
        if (hook)
            hook(path, other);
        mode = HOOK;
        errno = saved;
        return PASS;
    }
    default:
        errno = (int)error_number;
        return FAIL;
    }
}

static enum verdict judge_path(unsigned family, const char *name, int dirfd, const char *path) {
    char full[PATH_MAX];
    if (mode == OFF || !(families & family))
        return PASS;
    path_at(dirfd, path, full);
    struct raw raw = {dirfd, 0, path, NULL};
    return judge(family, name, full, NULL, &raw);
}

static enum verdict judge_paths(unsigned family, const char *name, int from_fd, const char *from, int to_fd, const char *to) {
    char full_from[PATH_MAX], full_to[PATH_MAX];
    if (mode == OFF || !(families & family))
        return PASS;
    path_at(from_fd, from, full_from);
    path_at(to_fd, to, full_to);
    struct raw raw = {from_fd, to_fd, from, to};
    return judge(family, name, full_from, full_to, &raw);
}

static enum verdict judge_fd(unsigned family, const char *name, int fd) {
    char full[PATH_MAX];
    if (mode == OFF || !(families & family))
        return PASS;
    path_of_fd(fd, full);
    return judge(family, name, full, NULL, NULL);
}

/* Make the call unless the verdict is that it fails; -1 and errno is how all of these fail. */
#define FINISH(type, judged, call)     \
    do {                               \
        enum verdict v_ = (judged);    \
        if (v_ == FAIL)                \
            return -1;                 \
        type result_ = (call);         \
        if (v_ == DIE_AFTER)           \
            die();                     \
        return result_;                \
    } while (0)

/* ------------------------------------------------------------------ a second fsync of a file whose first one failed */

static int identify(int fd, struct identity *found) {
    struct statx about;
    int saved = errno;
    REAL(statx);
    int bad = real(fd, "", AT_EMPTY_PATH, STATX_TYPE | STATX_INO | STATX_BTIME, &about);
    errno = saved;
    if (bad || !S_ISREG(about.stx_mode))
        return 0;
    memset(found, 0, sizeof *found);
    found->major = about.stx_dev_major;
    found->minor = about.stx_dev_minor;
    found->ino = about.stx_ino;
    found->born_s = about.stx_btime.tv_sec;
    found->born_ns = about.stx_btime.tv_nsec;
    return 1;
}

static void watch_sync(int fd, enum verdict verdict) {
    char path[PATH_MAX];
    struct identity file;
    if (mode != ERROR || error_number == EINTR || (verdict != FAIL && failed_count == 0) || !identify(fd, &file))
        return;
    path_of_fd(fd, path);
    if (!below_root(path) || strstr(path, "/catalog.db"))
        return;
    pthread_mutex_lock(&failed_mutex);
    for (int i = 0; i < failed_count; i++)
        if (memcmp(&failed[i], &file, sizeof file) == 0)
            second_syncs++;
    if (verdict == FAIL && failed_count < (int)(sizeof failed / sizeof failed[0]))
        failed[failed_count++] = file;
    pthread_mutex_unlock(&failed_mutex);
}

/* ------------------------------------------------------------------ control */

/* Start counting from 0 with these settings; -1 if one of them is none. `log_path` may be NULL. Not safe while other threads call. */
int fault_arm(const char *mode_name, long at_number, int error, int is_sticky, unsigned counted, const char *root_path,
              const char *log_path) {
    static const char *names[] = {"off", "count", "kill-before", "kill-after", "error", "short", "signal", "hook"};
    int wanted = -1;
    for (int i = 0; i < 8; i++)
        if (mode_name && strcmp(mode_name, names[i]) == 0)
            wanted = i;
    if (wanted < 0 || !root_path || root_path[0] != '/' || strlen(root_path) >= PATH_MAX)
        return -1;
    mode = OFF;
    strcpy(root, root_path);
    normalize(root);
    root_length = strlen(root);
    at = at_number;
    error_number = error ? error : EIO;
    sticky = is_sticky;
    families = counted ? counted : MUTATING;
    count = hits = second_syncs = failed_count = 0;
    if (log_fd >= 0)
        close(log_fd);
    log_fd = log_path ? open(log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
    if (log_path && log_fd < 0)
        return -1;
    mode = wanted;
    return 0;
}

/* Let every call through from now on; the counts stay readable. */
void fault_disarm(void) {
    mode = OFF;
}

/* 1: fsync and its kin are counted and may fail, but are not made. What a killed process leaves behind does not depend on them. */
void fault_skip_syncs(int skip) {
    skip_syncs = skip;
}

/* Where the process would be killed, shut down the filesystem of `fd` instead: 1 writes out its log first, 2 drops it. -1: kill. */
void fault_cut_power(int fd, unsigned flags) {
    cut_fd = fd;
    cut_flags = flags;
}

/* What is called before a call that is hit in the mode "hook", with its whole path, and the other one if it has two. */
void fault_hook(void (*called)(const char *path, const char *other)) {
    hook = called;
}

/* 1: a line of the log also says what the kernel was given: descriptor of a directory, flags, path. */
void fault_log_raw(int wanted) {
    log_raw = wanted;
}

/* How many calls were counted, how many of them were hit, and how often a file whose fsync had failed was fsynced again. */
long fault_count(void) {
    return count;
}
long fault_hits(void) {
    return hits;
}
long fault_second_syncs(void) {
    return second_syncs;
}

__attribute__((constructor)) static void arm_by_environment(void) {
    const char *where = getenv("FAULT_ROOT"), *number = getenv("FAULT_AT"), *error = getenv("FAULT_ERRNO");
    const char *stays = getenv("FAULT_STICKY"), *counted = getenv("FAULT_FAMILIES");
    if (!where)
        return;
    if (fault_arm(getenv("FAULT_MODE"), number ? atol(number) : 0, error ? atoi(error) : 0, stays ? atoi(stays) : 0,
                  counted ? (unsigned)atoi(counted) : 0, where, getenv("FAULT_LOG"))) {
        static const char message[] = "the fault library was given settings that it does not understand\n";
        (void)!real_write(2, message, sizeof message - 1);
        _exit(125);
    }
}

/* ------------------------------------------------------------------ open, close */

static unsigned open_family(int flags) {
    return (flags & (O_CREAT | O_TRUNC)) || (flags & O_TMPFILE) == O_TMPFILE ? CREATE : OPEN;
}

#define MODE_ARGUMENT(flags)                                             \
    mode_t bits = 0;                                                     \
    if ((flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE) {         \
        va_list rest;                                                    \
        va_start(rest, flags);                                           \
        bits = (mode_t)va_arg(rest, unsigned);                           \
        va_end(rest);                                                    \
    }

#define OPEN_LIKE(name)                                                                              \
    int name(const char *path, int flags, ...) {                                                     \
        REAL(name);                                                                                  \
        MODE_ARGUMENT(flags)                                                                         \
        call_flags = flags;                                                                          \
        FINISH(int, judge_path(open_family(flags), "open", AT_FDCWD, path), real(path, flags, bits)); \
    }
OPEN_LIKE(open)
OPEN_LIKE(open64)

#define OPENAT_LIKE(name)                                                                                    \
    int name(int dirfd, const char *path, int flags, ...) {                                                  \
        REAL(name);                                                                                          \
        MODE_ARGUMENT(flags)                                                                                 \
        call_flags = flags;                                                                                  \
        FINISH(int, judge_path(open_family(flags), "openat", dirfd, path), real(dirfd, path, flags, bits)); \
    }
OPENAT_LIKE(openat)
OPENAT_LIKE(openat64)

/* What a compiler makes of open with two arguments when it fortifies; never with O_CREAT. */
#define OPEN_2_LIKE(name)                                                                       \
    int name(const char *path, int flags);                                                      \
    int name(const char *path, int flags) {                                                     \
        REAL(name);                                                                             \
        FINISH(int, judge_path(open_family(flags), "open", AT_FDCWD, path), real(path, flags)); \
    }
OPEN_2_LIKE(__open_2)
OPEN_2_LIKE(__open64_2)

#define OPENAT_2_LIKE(name)                                                                           \
    int name(int dirfd, const char *path, int flags);                                                 \
    int name(int dirfd, const char *path, int flags) {                                                \
        REAL(name);                                                                                   \
        FINISH(int, judge_path(open_family(flags), "openat", dirfd, path), real(dirfd, path, flags)); \
    }
OPENAT_2_LIKE(__openat_2)
OPENAT_2_LIKE(__openat64_2)

#define CREAT_LIKE(name)                                                               \
    int name(const char *path, mode_t bits) {                                          \
        REAL(name);                                                                    \
        FINISH(int, judge_path(CREATE, "creat", AT_FDCWD, path), real(path, bits));    \
    }
CREAT_LIKE(creat)
CREAT_LIKE(creat64)

int close(int fd) {
    REAL(close);
    enum verdict verdict = judge_fd(CLOSE, "close", fd);
    int wanted = errno, result = real(fd);
    if (verdict == DIE_AFTER)
        die();
    if (verdict == FAIL) {
        errno = wanted;
        return -1;
    }
    return result;
}

/* ------------------------------------------------------------------ bytes */

/* Half of it, in whole pages where there are that many: a descriptor opened for direct I/O takes nothing else. */
static size_t half_of(size_t size) {
    size_t half = size / 2;
    if (half >= 4096)
        half -= half % 4096;
    return half ? half : size;
}

#define WRITE_LIKE(name, declared, ...)                                  \
    ssize_t name declared {                                              \
        REAL(name);                                                      \
        enum verdict verdict = judge_fd(WRITE, #name, fd);               \
        if (verdict == HALF)                                             \
            size = half_of(size);                                        \
        FINISH(ssize_t, verdict, real(__VA_ARGS__));                     \
    }
WRITE_LIKE(write, (int fd, const void *data, size_t size), fd, data, size)
WRITE_LIKE(pwrite, (int fd, const void *data, size_t size, off_t offset), fd, data, size, offset)
WRITE_LIKE(pwrite64, (int fd, const void *data, size_t size, off64_t offset), fd, data, size, offset)
WRITE_LIKE(sendfile, (int fd, int from, off_t *offset, size_t size), fd, from, offset, size)
WRITE_LIKE(sendfile64, (int fd, int from, off64_t *offset, size_t size), fd, from, offset, size)
WRITE_LIKE(copy_file_range, (int from, off64_t *from_offset, int fd, off64_t *offset, size_t size, unsigned flags), from,
           from_offset, fd, offset, size, flags)

/* Shorten `parts` to half of all their bytes; returns how many parts are left. */
static int halve(struct iovec *parts, const struct iovec *given, int n) {
    size_t total = 0;
    for (int i = 0; i < n; i++)
        total += given[i].iov_len;
    size_t left = half_of(total);
    int kept = 0;
    for (int i = 0; i < n && left > 0; i++) {
        parts[kept] = given[i];
        if (parts[kept].iov_len > left)
            parts[kept].iov_len = left;
        left -= parts[kept++].iov_len;
    }
    return kept;
}

#define WRITEV_LIKE(name, declared, ...)                                 \
    ssize_t name declared {                                              \
        REAL(name);                                                      \
        struct iovec fewer[IOV_MAX];                                     \
        enum verdict verdict = judge_fd(WRITE, #name, fd);               \
        if (verdict == HALF && n > 0 && n <= IOV_MAX) {                  \
            n = halve(fewer, parts, n);                                  \
            parts = fewer;                                               \
        }                                                                \
        FINISH(ssize_t, verdict, real(__VA_ARGS__));                     \
    }
WRITEV_LIKE(writev, (int fd, const struct iovec *parts, int n), fd, parts, n)
WRITEV_LIKE(pwritev, (int fd, const struct iovec *parts, int n, off_t offset), fd, parts, n, offset)
WRITEV_LIKE(pwritev64, (int fd, const struct iovec *parts, int n, off64_t offset), fd, parts, n, offset)
WRITEV_LIKE(pwritev2, (int fd, const struct iovec *parts, int n, off_t offset, int flags), fd, parts, n, offset, flags)
WRITEV_LIKE(pwritev64v2, (int fd, const struct iovec *parts, int n, off64_t offset, int flags), fd, parts, n, offset, flags)

#define READ_LIKE(name, declared, ...)                                   \
    ssize_t name declared {                                              \
        REAL(name);                                                      \
        enum verdict verdict = judge_fd(READ, #name, fd);                \
        if (verdict == HALF)                                             \
            size = half_of(size);                                        \
        FINISH(ssize_t, verdict, real(__VA_ARGS__));                     \
    }
READ_LIKE(read, (int fd, void *data, size_t size), fd, data, size)
READ_LIKE(pread, (int fd, void *data, size_t size, off_t offset), fd, data, size, offset)
READ_LIKE(pread64, (int fd, void *data, size_t size, off64_t offset), fd, data, size, offset)

#define READV_LIKE(name, declared, ...)                                  \
    ssize_t name declared {                                              \
        REAL(name);                                                      \
        struct iovec fewer[IOV_MAX];                                     \
        enum verdict verdict = judge_fd(READ, #name, fd);                \
        if (verdict == HALF && n > 0 && n <= IOV_MAX) {                  \
            n = halve(fewer, parts, n);                                  \
            parts = fewer;                                               \
        }                                                                \
        FINISH(ssize_t, verdict, real(__VA_ARGS__));                     \
    }
READV_LIKE(readv, (int fd, const struct iovec *parts, int n), fd, parts, n)
READV_LIKE(preadv, (int fd, const struct iovec *parts, int n, off_t offset), fd, parts, n, offset)
READV_LIKE(preadv64, (int fd, const struct iovec *parts, int n, off64_t offset), fd, parts, n, offset)
READV_LIKE(preadv2, (int fd, const struct iovec *parts, int n, off_t offset, int flags), fd, parts, n, offset, flags)
READV_LIKE(preadv64v2, (int fd, const struct iovec *parts, int n, off64_t offset, int flags), fd, parts, n, offset, flags)

/* ------------------------------------------------------------------ durability */

#define SYNC_LIKE(name, declared, ...)                     \
    int name declared {                                    \
        REAL(name);                                        \
        enum verdict verdict = judge_fd(SYNC, #name, fd);  \
        watch_sync(fd, verdict);                           \
        FINISH(int, verdict, skip_syncs ? 0 : real(__VA_ARGS__)); \
    }
SYNC_LIKE(fsync, (int fd), fd)
SYNC_LIKE(fdatasync, (int fd), fd)

int sync_file_range(int fd, off64_t offset, off64_t size, unsigned flags) {
    REAL(sync_file_range);
    FINISH(int, judge_fd(SYNC, "sync_file_range", fd), skip_syncs ? 0 : real(fd, offset, size, flags));
}

int syncfs(int fd) {
    REAL(syncfs);
    FINISH(int, judge_fd(SYNC, "syncfs", fd), skip_syncs ? 0 : real(fd));
}

/* ------------------------------------------------------------------ names */

int rename(const char *from, const char *to) {
    REAL(rename);
    FINISH(int, judge_paths(NAME, "rename", AT_FDCWD, from, AT_FDCWD, to), real(from, to));
}

int renameat(int from_fd, const char *from, int to_fd, const char *to) {
    REAL(renameat);
    FINISH(int, judge_paths(NAME, "renameat", from_fd, from, to_fd, to), real(from_fd, from, to_fd, to));
}

int renameat2(int from_fd, const char *from, int to_fd, const char *to, unsigned flags) {
    REAL(renameat2);
    FINISH(int, judge_paths(NAME, "renameat2", from_fd, from, to_fd, to), real(from_fd, from, to_fd, to, flags));
}

int link(const char *from, const char *to) {
    REAL(link);
    FINISH(int, judge_paths(LINK, "link", AT_FDCWD, from, AT_FDCWD, to), real(from, to));
}

int linkat(int from_fd, const char *from, int to_fd, const char *to, int flags) {
    REAL(linkat);
    call_flags = flags;
    FINISH(int, judge_paths(LINK, "linkat", from_fd, from, to_fd, to), real(from_fd, from, to_fd, to, flags));
}

/* Where a symlink points is text, not a place. */
int symlink(const char *text, const char *path) {
    REAL(symlink);
    FINISH(int, judge_path(CREATE, "symlink", AT_FDCWD, path), real(text, path));
}

int symlinkat(const char *text, int dirfd, const char *path) {
    REAL(symlinkat);
    FINISH(int, judge_path(CREATE, "symlinkat", dirfd, path), real(text, dirfd, path));
}

#define PATH_LIKE(name, family, declared, ...)                                          \
    int name declared {                                                                 \
        REAL(name);                                                                     \
        call_flags = 0;                                                                 \
        FINISH(int, judge_path(family, #name, AT_FDCWD, path), real(__VA_ARGS__));      \
    }
#define AT_LIKE(name, family, declared, ...)                                            \
    int name declared {                                                                 \
        REAL(name);                                                                     \
        call_flags = 0;                                                                 \
        FINISH(int, judge_path(family, #name, dirfd, path), real(__VA_ARGS__));         \
    }
#define AT_FLAGS_LIKE(name, family, declared, ...)                                      \
    int name declared {                                                                 \
        REAL(name);                                                                     \
        call_flags = flags;                                                             \
        FINISH(int, judge_path(family, #name, dirfd, path), real(__VA_ARGS__));         \
    }
#define FD_LIKE(name, family, declared, ...)                                            \
    int name declared {                                                                 \
        REAL(name);                                                                     \
        FINISH(int, judge_fd(family, #name, fd), real(__VA_ARGS__));                    \
    }
PATH_LIKE(unlink, NAME, (const char *path), path)
AT_FLAGS_LIKE(unlinkat, NAME, (int dirfd, const char *path, int flags), dirfd, path, flags)
PATH_LIKE(rmdir, NAME, (const char *path), path)
PATH_LIKE(mkdir, CREATE, (const char *path, mode_t bits), path, bits)
AT_LIKE(mkdirat, CREATE, (int dirfd, const char *path, mode_t bits), dirfd, path, bits)
PATH_LIKE(mknod, CREATE, (const char *path, mode_t bits, dev_t device), path, bits, device)
AT_LIKE(mknodat, CREATE, (int dirfd, const char *path, mode_t bits, dev_t device), dirfd, path, bits, device)

/* ------------------------------------------------------------------ what is said about a file */

FD_LIKE(ftruncate, META, (int fd, off_t size), fd, size)
FD_LIKE(ftruncate64, META, (int fd, off64_t size), fd, size)
PATH_LIKE(truncate, META, (const char *path, off_t size), path, size)
PATH_LIKE(truncate64, META, (const char *path, off64_t size), path, size)
FD_LIKE(fallocate, META, (int fd, int how, off_t offset, off_t size), fd, how, offset, size)
FD_LIKE(fallocate64, META, (int fd, int how, off64_t offset, off64_t size), fd, how, offset, size)
PATH_LIKE(chmod, META, (const char *path, mode_t bits), path, bits)
FD_LIKE(fchmod, META, (int fd, mode_t bits), fd, bits)
AT_FLAGS_LIKE(fchmodat, META, (int dirfd, const char *path, mode_t bits, int flags), dirfd, path, bits, flags)
PATH_LIKE(chown, META, (const char *path, uid_t user, gid_t group), path, user, group)
PATH_LIKE(lchown, META, (const char *path, uid_t user, gid_t group), path, user, group)
FD_LIKE(fchown, META, (int fd, uid_t user, gid_t group), fd, user, group)
AT_FLAGS_LIKE(fchownat, META, (int dirfd, const char *path, uid_t user, gid_t group, int flags), dirfd, path, user, group, flags)
AT_FLAGS_LIKE(utimensat, META, (int dirfd, const char *path, const struct timespec times[2], int flags), dirfd, path, times, flags)
FD_LIKE(futimens, META, (int fd, const struct timespec times[2]), fd, times)

/* These return the error instead of setting errno. */
#define POSIX_FALLOCATE_LIKE(name, offset_type)                             \
    int name(int fd, offset_type offset, offset_type size) {                \
        REAL(name);                                                         \
        enum verdict verdict = judge_fd(META, #name, fd);                   \
        if (verdict == FAIL)                                                \
            return (int)error_number;                                       \
        int result = real(fd, offset, size);                                \
        if (verdict == DIE_AFTER)                                           \
            die();                                                          \
        return result;                                                      \
    }
POSIX_FALLOCATE_LIKE(posix_fallocate, off_t)
POSIX_FALLOCATE_LIKE(posix_fallocate64, off64_t)

/* ------------------------------------------------------------------ looking */

PATH_LIKE(stat, LOOK, (const char *path, struct stat *out), path, out)
PATH_LIKE(stat64, LOOK, (const char *path, struct stat64 *out), path, out)
PATH_LIKE(lstat, LOOK, (const char *path, struct stat *out), path, out)
PATH_LIKE(lstat64, LOOK, (const char *path, struct stat64 *out), path, out)
AT_FLAGS_LIKE(fstatat, LOOK, (int dirfd, const char *path, struct stat *out, int flags), dirfd, path, out, flags)
AT_FLAGS_LIKE(fstatat64, LOOK, (int dirfd, const char *path, struct stat64 *out, int flags), dirfd, path, out, flags)
AT_FLAGS_LIKE(statx, LOOK, (int dirfd, const char *path, int flags, unsigned mask, struct statx *out), dirfd, path, flags, mask,
              out)
PATH_LIKE(access, LOOK, (const char *path, int how), path, how)
AT_FLAGS_LIKE(faccessat, LOOK, (int dirfd, const char *path, int how, int flags), dirfd, path, how, flags)

ssize_t readlink(const char *path, char *out, size_t size) {
    FINISH(ssize_t, judge_path(LOOK, "readlink", AT_FDCWD, path), real_readlink(path, out, size));
}

ssize_t readlinkat(int dirfd, const char *path, char *out, size_t size) {
    REAL(readlinkat);
    FINISH(ssize_t, judge_path(LOOK, "readlinkat", dirfd, path), real(dirfd, path, out, size));
}

DIR *opendir(const char *path) {
    REAL(opendir);
    enum verdict verdict = judge_path(LOOK, "opendir", AT_FDCWD, path);
    if (verdict == FAIL)
        return NULL;
    DIR *result = real(path);
    if (verdict == DIE_AFTER)
        die();
    return result;
}

/* ------------------------------------------------------------------ locks */

int flock(int fd, int operation);
FD_LIKE(flock, LOCK, (int fd, int operation), fd, operation)

static int is_record_lock(int command) {
    return command == F_SETLK || command == F_SETLKW || command == F_OFD_SETLK || command == F_OFD_SETLKW;
}

#define FCNTL_LIKE(name)                                                         \
    int name(int fd, int command, ...) {                                         \
        REAL(name);                                                              \
        va_list rest;                                                            \
        va_start(rest, command);                                                 \
        void *argument = va_arg(rest, void *);                                   \
        va_end(rest);                                                            \
        enum verdict verdict = is_record_lock(command) ? judge_fd(LOCK, "fcntl", fd) : PASS; \
        FINISH(int, verdict, real(fd, command, argument));                       \
    }
FCNTL_LIKE(fcntl)
FCNTL_LIKE(fcntl64)

/* ------------------------------------------------------------------ sleep */

/* SQLite asks a log again and again, for ten seconds at each question, if it can neither write it nor find it whole. Nothing gets
 * better where every call fails, so there it sleeps a hundredth of that. Python's own sleep is another call. */
static int is_sleep_in_vain(void) {
    return mode == ERROR && sticky && hits;
}

int usleep(useconds_t us) {
    REAL(usleep);
    return real(is_sleep_in_vain() ? us / 100 : us);
}

int nanosleep(const struct timespec *wanted, struct timespec *left) {
    REAL(nanosleep);
    struct timespec less = *wanted;
    if (is_sleep_in_vain()) {
        less.tv_nsec = (wanted->tv_sec % 100 * 1000000000L + wanted->tv_nsec) / 100;
        less.tv_sec = wanted->tv_sec / 100;
    }
    return real(&less, left);
}
