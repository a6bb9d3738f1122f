/* A long line between two network namespaces: delay, rate and a bounded queue, in user space.
 *
 * usage: slowline NAMESPACE_A NAMESPACE_B ONE_WAY_MICROSECONDS MEGABITS QUEUE_MILLISECONDS [LOST]
 *
 * Makes a TUN device `line0` in each and carries packets between them. Segmentation is left to
 * the kernel (TSO through virtio headers), so a packet here may be 64 KiB: fewer wake-ups. A
 * packet that would wait longer than the queue holds is dropped, as a router would. With LOST, so
 * many of a million packets are dropped at random, and packets are of the size that the wire has.
 * Prints "ready" when both devices are there; ends when its standard input is closed.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define LARGEST 70000
#define WAITING 65536 /* packets in one direction at most */

struct packet { long long due; int length; unsigned char bytes[]; };

struct direction {
    int from, to;
    struct packet *ring[WAITING];
    unsigned head, tail; /* taken, put */
    pthread_mutex_t lock;
    pthread_cond_t arrived;
};

static long long delay_ns, queue_ns;
static double ns_per_byte;
static int lost; /* of a million packets */

static long long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void fail(const char *what) { perror(what); exit(1); }

static int device_in(const char *namespace) {
    char path[256];
    snprintf(path, sizeof path, "/var/run/netns/%s", namespace);
    int ns = open(path, O_RDONLY | O_CLOEXEC);
    if (ns < 0 || setns(ns, CLONE_NEWNET)) fail(path);
    close(ns);
    int device = open("/dev/net/tun", O_RDWR | O_CLOEXEC);
    if (device < 0) fail("/dev/net/tun");
    struct ifreq ask;
    memset(&ask, 0, sizeof ask);
    strcpy(ask.ifr_name, "line0");
    ask.ifr_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR;
    if (ioctl(device, TUNSETIFF, &ask)) fail("TUNSETIFF");
    unsigned offload = TUN_F_CSUM | (lost ? 0 : TUN_F_TSO4 | TUN_F_TSO6);
    if (ioctl(device, TUNSETOFFLOAD, offload)) fail("TUNSETOFFLOAD");
    return device;
}

static void *take(void *argument) {
    struct direction *way = argument;
    unsigned seed = way->from;
    static __thread unsigned char buffer[LARGEST];
    long long line_free = 0; /* when the line will have sent what is before us */
    for (;;) {
        int length = read(way->from, buffer, sizeof buffer);
        if (length <= 0) {
            if (errno == EINTR || errno == EIO) { usleep(1000); continue; } /* not up yet */
            fail("read");
        }
        if (lost && rand_r(&seed) % 1000000 < lost) continue;
        long long moment = now();
        if (line_free < moment) line_free = moment;
        if (line_free - moment > queue_ns) continue; /* dropped */
        line_free += (long long)(length * ns_per_byte);
        pthread_mutex_lock(&way->lock);
        if (way->tail - way->head < WAITING) {
            struct packet *one = malloc(sizeof *one + length);
            one->due = line_free + delay_ns;
            one->length = length;
            memcpy(one->bytes, buffer, length);
            way->ring[way->tail++ % WAITING] = one;
            pthread_cond_signal(&way->arrived);
        }
        pthread_mutex_unlock(&way->lock);
    }
    return NULL;
}

static void *give(void *argument) {
    struct direction *way = argument;
    prctl(PR_SET_TIMERSLACK, 1000); /* ns: sleeps end when they should */
    for (;;) {
        pthread_mutex_lock(&way->lock);
        while (way->head == way->tail) pthread_cond_wait(&way->arrived, &way->lock);
        struct packet *one = way->ring[way->head++ % WAITING];
        pthread_mutex_unlock(&way->lock);
        if (one->due > now()) {
            struct timespec t = {one->due / 1000000000, one->due % 1000000000};
            clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
        }
        if (write(way->to, one->bytes, one->length) < 0 && errno != EIO) perror("write");
        free(one);
    }
    return NULL;
}

static void carry(int from, int to) {
    struct direction *way = calloc(1, sizeof *way);
    pthread_t thread;
    way->from = from;
    way->to = to;
    pthread_mutex_init(&way->lock, NULL);
    pthread_cond_init(&way->arrived, NULL);
    pthread_create(&thread, NULL, take, way);
    pthread_create(&thread, NULL, give, way);
}

int main(int count, char **words) {
    if (count < 6) { fprintf(stderr, "usage: slowline NS_A NS_B ONE_WAY_US MBIT QUEUE_MS [LOST]\n"); return 2; }
    delay_ns = atoll(words[3]) * 1000;
    ns_per_byte = 8000.0 / atof(words[4]);
    queue_ns = atoll(words[5]) * 1000000;
    lost = count > 6 ? atoi(words[6]) : 0;
    int a = device_in(words[1]), b = device_in(words[2]);
    carry(a, b);
    carry(b, a);
    puts("ready");
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) > 0) {}
    return 0;
}
