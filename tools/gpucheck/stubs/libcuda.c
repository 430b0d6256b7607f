// SPDX-License-Identifier: Apache-2.0
/*
 * Stub of libcuda.so.1, for a machine without a GPU: one device, whose kernels take the time
 * that they are given and whose host threads wait as the scheduling mode says. The device files
 * that it opens lie in STUB_DEVICES. Signatures: cuda.h.
 */
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define NO_DEVICE          100
#define ILLEGAL_ADDRESS    700
#define MISALIGNED_ADDRESS 716
#define SPIN               1
#define YIELD              2
#define BLOCKING_SYNC      4
#define QUEUE              1024

static unsigned int scheduling;
static int64_t ends_ns[QUEUE];
static uint64_t launched;
static int failed;

static int64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void wait_until(int64_t end_ns)
{
	while (now_ns() < end_ns)
		if (scheduling == BLOCKING_SYNC)
			poll(NULL, 0, 5);
		else if (scheduling == YIELD)
			sched_yield();
}

static void open_device(const char *name)
{
	const char *folder = getenv("STUB_DEVICES");
	char path[512];

	if (folder && snprintf(path, sizeof(path), "%s/%s", folder, name) < (int)sizeof(path))
		(void)!open(path, O_RDWR);
}

static int use(unsigned int flags)
{
	scheduling = flags ? flags : SPIN;
	open_device("nvidia-uvm");
	open_device("nvidia0");
	return 0;
}

int cuInit(unsigned int flags)
{
	const char *visible = getenv("CUDA_VISIBLE_DEVICES");

	(void)flags;
	open_device("nvidiactl");
	return visible && !*visible ? NO_DEVICE : 0;
}

int cuGetErrorName(int code, const char **name)
{
	*name = code == NO_DEVICE ? "CUDA_ERROR_NO_DEVICE" : "an error of the stub";
	return 0;
}

int cuDeviceGetCount(int *count)
{
	*count = 1;
	return 0;
}

int cuDriverGetVersion(int *version)
{
	*version = 12040;
	return 0;
}

int cuDeviceGetName(char *name, int size, int device)
{
	(void)device;
	snprintf(name, size, "a stub, no GPU");
	return 0;
}

int cuCtxCreate_v2(void **context, unsigned int flags, int device)
{
	(void)device;
	*context = &scheduling;
	return use(flags);
}

int cuDevicePrimaryCtxSetFlags_v2(int device, unsigned int flags)
{
	(void)device;
	scheduling = flags;
	return 0;
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
	(void)device;
	*context = &scheduling;
	return use(scheduling);
}

int cuCtxSetCurrent(void *context)
{
	(void)context;
	return 0;
}

int cuMemAlloc_v2(uint64_t *address, size_t size)
{
	void *memory = aligned_alloc(256, (size + 255) / 256 * 256);

	*address = (uintptr_t)memory;
	return memory ? 0 : 2;
}

int cuModuleLoadData(void **module, const char *image)
{
	*module = &launched;
	return strstr(image, ".entry wait_ns") ? 0 : 218;
}

int cuModuleGetFunction(void **function, void *module, const char *name)
{
	(void)module;
	*function = strcmp(name, "wait_ns") ? (void *)&failed : (void *)&launched;
	return 0;
}

int cuStreamCreate(void **stream, unsigned int flags)
{
	(void)flags;
	*stream = &ends_ns;
	return 0;
}

int cuLaunchKernel(void *function, unsigned int gx, unsigned int gy, unsigned int gz,
		   unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared,
		   void *stream, void **arguments, void **extra)
{
	uint64_t argument = *(uint64_t *)arguments[0];
	int64_t begin_ns = now_ns();
	int64_t last_ns = launched ? ends_ns[(launched - 1) % QUEUE] : 0;

	(void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz;
	(void)shared, (void)stream, (void)extra;
	if (failed)
		return failed;
	if (function == (void *)&failed) {
		failed = argument % 4 ? MISALIGNED_ADDRESS : ILLEGAL_ADDRESS;
		return 0;
	}
	/* full: the oldest launch must have ended */
	if (launched >= QUEUE)
		wait_until(ends_ns[launched % QUEUE]);
	ends_ns[launched++ % QUEUE] = (begin_ns > last_ns ? begin_ns : last_ns) + (int64_t)argument;
	return 0;
}

int cuStreamSynchronize(void *stream)
{
	(void)stream;
	if (launched)
		wait_until(ends_ns[(launched - 1) % QUEUE]);
	return failed;
}

int cuCtxSynchronize(void)
{
	return cuStreamSynchronize(NULL);
}
