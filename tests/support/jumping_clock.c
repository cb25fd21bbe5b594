/* A wall clock that jumps: preloaded by tests/tools/odd-environments.
 *
 * Every few times that it is asked, CLOCK_REALTIME is elsewhere: hours or years ahead or back, as after a
 * wrong NTP answer, a dead battery, a resumed virtual machine. CLOCK_MONOTONIC is left alone: the kernel
 * promises that it does not jump. Times of files come from the kernel, so they do not jump either.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/time.h>
#include <time.h>

static const long long jumps_s[] = {0, 3600, -3600, 86400LL * 3650, -86400LL * 3650, -1, 86400LL * 30, -86400LL * 365};
enum { EVERY = 3, COUNT = sizeof jumps_s / sizeof jumps_s[0] };

static long long jump_s(void) {
    static atomic_uint asked;
    return jumps_s[(atomic_fetch_add(&asked, 1) / EVERY) % COUNT];
}

static int is_wall(clockid_t clock) {
    return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (real == NULL)
        real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, now);
    if (result == 0 && is_wall(clock))
        now->tv_sec += jump_s();
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &exact) != 0)
        return -1;
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec exact;
    if (clock_gettime(CLOCK_REALTIME, &exact) != 0)
        return (time_t)-1;
    if (now != NULL)
        *now = exact.tv_sec;
    return exact.tv_sec;
}
