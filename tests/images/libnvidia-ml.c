/* NVML without a driver: enough for TensorFlow, which lists no GPU where this library is absent.
 * cc -shared -fPIC -o libnvidia-ml.so.1 libnvidia-ml.c
 */
#include <stdio.h>
#include <stdlib.h>

enum { INVALID_ARGUMENT = 2 };

static int count(void)
{
    const char *value = getenv("FAKE_GPUS");
    return value ? atoi(value) : 1;
}

int nvmlInit_v2(void) { return 0; }
int nvmlInitWithFlags(unsigned flags) { (void)flags; return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *found) { *found = count(); return 0; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle)
{
    if ((int)index >= count())
        return INVALID_ARGUMENT;
    *handle = (void *)(long)(index + 1);
    return 0;
}

int nvmlSystemGetDriverVersion(char *text, unsigned length)
{
    snprintf(text, length, "550.54.15");
    return 0;
}

const char *nvmlErrorString(int error) { (void)error; return "no real driver"; }
