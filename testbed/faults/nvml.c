// SPDX-License-Identifier: Apache-2.0
/*
 * Stub of libnvidia-ml.so.1 with two GPUs, for tests without one. What happens is read from
 * the file named by FAKE_NVML, a line each: "xid GPU NUMBER INSTANCE" (instance -1: none), "user
 * GPU PID INSTANCE", "refuse CODE" for nvmlInit, "block CALL" for a call of the binding that never
 * returns, in state D. Signatures: nvml.h.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "blocks.h"

#define SUCCESS           0
#define INSUFFICIENT_SIZE 7
#define TIMEOUT           10
#define XID_EVENT         0x8ULL
#define GPUS              2

struct device {
	int index;
};

struct pci_info {
	char legacy[16];
	unsigned int domain, bus, device, id, subsystem;
	char bus_id[32];
};

struct event {
	struct device *device;
	unsigned long long type, data;
	unsigned int gpu_instance, compute_instance;
};

struct process {
	unsigned int pid;
	unsigned long long memory;
	unsigned int gpu_instance, compute_instance;
};

static struct device devices[GPUS] = { { 0 }, { 1 } };
static int reported;

static FILE *script(void)
{
	const char *path = getenv("FAKE_NVML");

	return path ? fopen(path, "r") : NULL;
}

static void may_block(const char *call)
{
	FILE *file = script();
	char line[128], found[64];

	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "block %63s", found) == 1 && !strcmp(found, call))
			block();
	if (file)
		fclose(file);
}

static int initialize(void)
{
	FILE *file = script();
	char line[128];
	int code = SUCCESS;

	may_block("nvmlInit");
	while (file && fgets(line, sizeof(line), file))
		sscanf(line, "refuse %d", &code);
	if (file)
		fclose(file);
	return code;
}

int nvmlInit_v2(void)
{
	return initialize();
}

int nvmlInitWithFlags(unsigned int flags)
{
	(void)flags;
	return initialize();
}

int nvmlShutdown(void)
{
	may_block("nvmlShutdown");
	return SUCCESS;
}

const char *nvmlErrorString(int code)
{
	(void)code;
	return "an error of the stub";
}

int nvmlDeviceGetCount_v2(unsigned int *count)
{
	may_block("nvmlDeviceGetCount");
	*count = GPUS;
	return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, struct device **device)
{
	may_block("nvmlDeviceGetHandleByIndex");
	*device = &devices[index];
	return SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(struct device *device, struct pci_info *info)
{
	may_block("nvmlDeviceGetPciInfo");
	memset(info, 0, sizeof(*info));
	snprintf(info->bus_id, sizeof(info->bus_id), "00000000:%02X:00.0", 0x5d + device->index);
	return SUCCESS;
}

int nvmlEventSetCreate(void **set)
{
	may_block("nvmlEventSetCreate");
	*set = &reported;
	return SUCCESS;
}

int nvmlEventSetFree(void *set)
{
	(void)set;
	may_block("nvmlEventSetFree");
	return SUCCESS;
}

int nvmlDeviceRegisterEvents(struct device *device, unsigned long long types, void *set)
{
	(void)device;
	(void)set;
	may_block("nvmlDeviceRegisterEvents");
	return types == XID_EVENT ? SUCCESS : 2;
}

/* The events of the script in its order, each once; lines may be added while it is read. */
int nvmlEventSetWait_v2(void *set, struct event *event, unsigned int timeout_ms)
{
	FILE *file = script();
	int gpu, number, instance, count = 0;
	char line[128];

	(void)set;
	may_block("nvmlEventSetWait");
	while (file && fgets(line, sizeof(line), file)) {
		if (sscanf(line, "xid %d %d %d", &gpu, &number, &instance) != 3)
			continue;
		if (count++ < reported)
			continue;
		reported++;
		fclose(file);
		*event = (struct event){ &devices[gpu], XID_EVENT, number, instance,
					 instance < 0 ? -1 : 0 };
		return SUCCESS;
	}
	if (file)
		fclose(file);
	usleep(timeout_ms * 100);
	return TIMEOUT;
}

int nvmlDeviceGetComputeRunningProcesses_v3(struct device *device, unsigned int *count,
					    struct process *processes)
{
	unsigned int room = processes ? *count : 0, found = 0;
	FILE *file = script();
	int gpu, pid, instance;
	char line[128];

	may_block("nvmlDeviceGetComputeRunningProcesses");
	while (file && fgets(line, sizeof(line), file)) {
		if (sscanf(line, "user %d %d %d", &gpu, &pid, &instance) != 3 ||
		    gpu != device->index)
			continue;
		if (found < room)
			processes[found] = (struct process){ pid, 1 << 20, instance, -1 };
		found++;
	}
	if (file)
		fclose(file);
	*count = found;
	return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}
