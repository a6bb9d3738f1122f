/* A network disk's likeness: a folder shown through FUSE, where every operation costs a round trip.
 *
 * usage: slowdisk FOLDER MOUNTPOINT MICROSECONDS
 *
 * Looking up, listing, opening and reading wait for one trip each, in parallel up to 128 of them;
 * no limit of bandwidth, as on a good network disk. Read-only. Stays in the foreground.
 */
#define FUSE_USE_VERSION 31
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static char folder[PATH_MAX];
static long trip_us;

static void trip(void) {
    struct timespec t = {trip_us / 1000000, trip_us % 1000000 * 1000};
    nanosleep(&t, NULL);
}

static void real(char *to, const char *path) { snprintf(to, PATH_MAX, "%s%s", folder, path); }

static int get_attributes(const char *path, struct stat *status, struct fuse_file_info *info) {
    char at[PATH_MAX];
    (void)info;
    real(at, path);
    trip();
    return lstat(at, status) ? -errno : 0;
}

static int read_link(const char *path, char *to, size_t size) {
    char at[PATH_MAX];
    real(at, path);
    trip();
    ssize_t length = readlink(at, to, size - 1);
    if (length < 0) return -errno;
    to[length] = 0;
    return 0;
}

static int read_folder(const char *path, void *to, fuse_fill_dir_t fill, off_t from,
                       struct fuse_file_info *info, enum fuse_readdir_flags flags) {
    char at[PATH_MAX];
    (void)from, (void)info;
    real(at, path);
    trip();
    DIR *open_folder = opendir(at);
    if (!open_folder) return -errno;
    struct dirent *entry;
    while ((entry = readdir(open_folder))) {
        struct stat status;
        memset(&status, 0, sizeof status);
        int plus = flags & FUSE_READDIR_PLUS &&
                   !fstatat(dirfd(open_folder), entry->d_name, &status, AT_SYMLINK_NOFOLLOW);
        if (!plus) {
            status.st_ino = entry->d_ino;
            status.st_mode = entry->d_type << 12;
        }
        fill(to, entry->d_name, &status, 0, plus ? FUSE_FILL_DIR_PLUS : 0);
    }
    closedir(open_folder);
    return 0;
}

static int open_file(const char *path, struct fuse_file_info *info) {
    char at[PATH_MAX];
    real(at, path);
    trip();
    int file = open(at, O_RDONLY);
    if (file < 0) return -errno;
    info->fh = file;
    return 0;
}

static int read_file(const char *path, char *to, size_t size, off_t from, struct fuse_file_info *info) {
    (void)path;
    trip();
    ssize_t count = pread(info->fh, to, size, from);
    return count < 0 ? -errno : (int)count;
}

static int close_file(const char *path, struct fuse_file_info *info) {
    (void)path; /* nobody waits for a close */
    close(info->fh);
    return 0;
}

static void *begin(struct fuse_conn_info *connection, struct fuse_config *config) {
    config->attr_timeout = config->entry_timeout = 3;
    connection->max_readahead = connection->max_read = 1 << 20;
    connection->max_background = connection->congestion_threshold = 256;
    connection->want |= connection->capable & (FUSE_CAP_READDIRPLUS | FUSE_CAP_READDIRPLUS_AUTO |
                                               FUSE_CAP_ASYNC_READ | FUSE_CAP_PARALLEL_DIROPS);
    return NULL;
}

static const struct fuse_operations operations = {
    .getattr = get_attributes, .readlink = read_link, .readdir = read_folder, .open = open_file,
    .read = read_file, .release = close_file, .init = begin,
};

int main(int count, char **words) {
    if (count != 4) { fprintf(stderr, "usage: slowdisk FOLDER MOUNTPOINT MICROSECONDS\n"); return 2; }
    if (!realpath(words[1], folder)) { perror(words[1]); return 1; }
    trip_us = atol(words[3]);
    char *fuse_words[] = {words[0], words[2], "-f", "-o",
        "ro,max_read=1048576,fsname=slowdisk,max_threads=130,max_idle_threads=130"};
    return fuse_main(5, fuse_words, &operations, NULL);
}
