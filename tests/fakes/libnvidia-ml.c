/* A stand-in for NVIDIA's management library, steered by a file that may change while it is in use:
 * $FAKE_NVML, else /tmp/fake-nvml. Lines: util N, memory MIB, pid N (repeats), gpus N, error N,
 * burst N (a sample between two looks), mig 1, hang SECONDS. Enough for a keeper; not to compute. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned gpu, memory; } rates_t;
typedef struct { unsigned pid; unsigned long long memory; unsigned gi, ci; } process_t;
typedef struct { unsigned long long time; unsigned value, padding; } sample_t;

static long setting(const char *name, long otherwise) {
    const char *path = getenv("FAKE_NVML");
    FILE *file = fopen(path ? path : "/tmp/fake-nvml", "r");
    char key[32];
    long value, found = otherwise;
    if (!file) return otherwise;
    while (fscanf(file, "%31s %ld", key, &value) == 2)
        if (!strcmp(key, name)) found = value;
    fclose(file);
    return found;
}

static int answer(void) {
    long seconds = setting("hang", 0);
    if (seconds) sleep(seconds);
    return setting("error", 0);
}

int nvmlInit_v2(void) { return answer(); }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) {
    return code == 9 ? "Driver Not Loaded" : code == 18 ? "Driver/library version mismatch"
         : code == 999 ? "Unknown Error" : "fake error";
}
int nvmlDeviceGetCount_v2(unsigned *count) { *count = setting("gpus", 1); return answer(); }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    *handle = (void *)(long)(index + 1);
    return index < (unsigned)setting("gpus", 1) ? 0 : 2;
}
int nvmlDeviceGetMemoryInfo(void *handle, memory_t *memory) {
    (void)handle;
    memory->total = 80ULL << 30;
    memory->used = (unsigned long long)setting("memory", 4) << 20;
    memory->free = memory->total - memory->used;
    return 0;
}
int nvmlDeviceGetUtilizationRates(void *handle, rates_t *rates) {
    (void)handle;
    if (setting("mig", 0)) return 3;
    rates->gpu = setting("util", 0);
    rates->memory = 0;
    return answer();
}
int nvmlDeviceGetSamples(void *handle, int type, unsigned long long since, int *kind,
                         unsigned *count, sample_t *samples) {
    static unsigned long long now = 100;
    (void)handle; (void)type; (void)since;
    *kind = 1;
    *count = 2;
    if (samples) {
        now += 10;
        samples[0].time = now - 5, samples[0].value = setting("burst", 0);
        samples[1].time = now, samples[1].value = setting("util", 0);
    }
    return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, process_t *rows) {
    const char *path = getenv("FAKE_NVML");
    FILE *file = fopen(path ? path : "/tmp/fake-nvml", "r");
    char key[32];
    long value;
    (void)handle;
    *count = 0;
    while (file && fscanf(file, "%31s %ld", key, &value) == 2)
        if (!strcmp(key, "pid")) rows[(*count)++].pid = value;
    if (file) fclose(file);
    return 0;
}
