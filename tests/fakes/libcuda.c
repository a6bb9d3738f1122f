/* A driver library without a driver: as much of libcuda.so.1 as TensorFlow asks for to list a GPU.
 *
 * It can't train: the first context fails. FAKE_GPUS, FAKE_CUINIT (cuInit's error), FAKE_DRIVER
 * (12050 = CUDA 12.5) and FAKE_CAPABILITY (61 = sm_61) steer it.
 * cc -shared -fPIC -o libcuda.so.1 libcuda.c
 */
#include <stdio.h>
#include <stdlib.h>

enum { NO_DEVICE = 100, UNKNOWN = 999 };
/* CUdevice_attribute */
enum { WARP_SIZE = 10, CLOCK_KHZ = 13, MULTIPROCESSORS = 16, MAJOR = 75, MINOR = 76 };

static int setting(const char *name, int otherwise)
{
    const char *value = getenv(name);
    return value ? atoi(value) : otherwise;
}

static int count(void) { return setting("FAKE_GPUS", 1); }

int cuInit(unsigned flags) { (void)flags; return setting("FAKE_CUINIT", 0); }
int cuDriverGetVersion(int *version) { *version = setting("FAKE_DRIVER", 12050); return 0; }
int cuDeviceGetCount(int *found) { *found = count(); return 0; }

int cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal;
    return ordinal < count() ? 0 : NO_DEVICE;
}

int cuDeviceGetName(char *name, int length, int device)
{
    (void)device;
    snprintf(name, length, "Fake GTX 1080 Ti");
    return 0;
}

int cuDeviceGetPCIBusId(char *id, int length, int device)
{
    snprintf(id, length, "0000:%02x:00.0", device + 1);
    return 0;
}

int cuDeviceComputeCapability(int *major, int *minor, int device)
{
    int both = setting("FAKE_CAPABILITY", 61);
    (void)device;
    *major = both / 10;
    *minor = both % 10;
    return 0;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device) { (void)device; *bytes = 11ull << 30; return 0; }

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    int major, minor;
    cuDeviceComputeCapability(&major, &minor, device);
    switch (attribute) {
    case MAJOR: *value = major; break;
    case MINOR: *value = minor; break;
    case MULTIPROCESSORS: *value = 28; break;
    case CLOCK_KHZ: *value = 1582000; break;
    case WARP_SIZE: *value = 32; break;
    default: *value = 1024;
    }
    return 0;
}

int cuGetErrorName(int error, const char **name) { (void)error; *name = "CUDA_ERROR_FAKE"; return 0; }
int cuGetErrorString(int error, const char **text) { (void)error; *text = "no real driver"; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { (void)context; (void)device; return UNKNOWN; }
int cuDevicePrimaryCtxSetFlags_v2(int device, unsigned flags) { (void)device; (void)flags; return 0; }

int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active)
{
    (void)device;
    *flags = 0;
    *active = 0;
    return 0;
}
