/* A disk that keeps only what was synced: the image that a power loss leaves.
 *
 * Preloaded; at each fsync and fdatasync the file, as it is then, is copied into the folder that
 * INCUMBENT_TEST_IMAGE names; with its folder synced, a file that is removed by then leaves it.
 * Read by the same descriptor: closing another one of the same file would end the process's POSIX
 * locks on it.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static void copy(int fd, const char *to)
{
    char block[65536];
    off_t at = 0;
    ssize_t got;
    int out = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (out < 0)
        abort();
    while ((got = pread(fd, block, sizeof block, at)) > 0) {
        if (write(out, block, got) != got)
            abort();
        at += got;
    }
    close(out);
}

static void forget(int fd, const char *folder)
{
    struct dirent *found;
    struct stat there;
    DIR *image = opendir(folder);
    if (!image)
        abort();
    while ((found = readdir(image)))
        if (found->d_name[0] != '.' && fstatat(fd, found->d_name, &there, 0) != 0)
            unlinkat(dirfd(image), found->d_name, 0);
    closedir(image);
}

static void keep(int fd, const char *folder)
{
    char link[64], path[PATH_MAX], to[2 * PATH_MAX], part[2 * PATH_MAX + 8];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        abort();
    path[length] = 0;
    snprintf(to, sizeof to, "%s%s", folder, strrchr(path, '/'));
    snprintf(part, sizeof part, "%s.part", to);
    copy(fd, part);
    rename(part, to);
}

static int synced(int result, int fd)
{
    const char *folder = getenv("INCUMBENT_TEST_IMAGE");
    struct stat found;
    if (result != 0 || !folder || fstat(fd, &found) != 0)
        return result;
    if (S_ISREG(found.st_mode))
        keep(fd, folder);
    else if (S_ISDIR(found.st_mode))
        forget(fd, folder);
    return result;
}

int fsync(int fd)
{
    return synced(syscall(SYS_fsync, fd), fd);
}

int fdatasync(int fd)
{
    return synced(syscall(SYS_fdatasync, fd), fd);
}
