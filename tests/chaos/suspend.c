/* A clock as after a suspend: CLOCK_MONOTONIC stood still meanwhile, CLOCK_BOOTTIME did not.
 *
 * Preloaded; the file INCUMBENT_TEST_LAG names holds the nanoseconds, as 8 bytes, by which
 * CLOCK_MONOTONIC is behind. A wait on that clock ends by the true one, so it is put right again.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static volatile long long *lag;

static struct timespec moved(struct timespec at, long long by)
{
    long long ns = at.tv_sec * 1000000000LL + at.tv_nsec + by;
    return (struct timespec){ns / 1000000000LL, ns % 1000000000LL};
}

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("INCUMBENT_TEST_LAG");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *page = mmap(NULL, 8, PROT_READ, MAP_SHARED, fd, 0);
    lag = page == MAP_FAILED ? NULL : page;
    close(fd);
}

int clock_gettime(clockid_t id, struct timespec *now)
{
    int result = syscall(SYS_clock_gettime, id, now);
    if (result == 0 && lag && id == CLOCK_MONOTONIC)
        *now = moved(*now, -*lag);
    return result;
}

int sem_clockwait(sem_t *sem, clockid_t id, const struct timespec *until)
{
    int (*wait)(sem_t *, clockid_t, const struct timespec *) = dlsym(RTLD_NEXT, "sem_clockwait");
    struct timespec true_until = *until;
    if (lag && id == CLOCK_MONOTONIC)
        true_until = moved(*until, *lag);
    return wait(sem, id, &true_until);
}
