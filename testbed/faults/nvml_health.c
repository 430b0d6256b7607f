// SPDX-License-Identifier: Apache-2.0
/*
 * Stub of libnvidia-ml.so.1 with two healthy GPUs, for what `inspect` and the telemetry ask.
 * The file named by FAKE_NVML changes it, a line each: "NAME GPU VALUE" (GPU -1: of none), where
 * VALUE is a number, "hang" for a call that never returns, "block" for one that does so in state D,
 * "error CODE", or "grow" for one more at each call. Signatures and numbers: nvml.h.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "blocks.h"

#define SUCCESS           0
#define INVALID_ARGUMENT  2
#define NOT_SUPPORTED     3
#define INSUFFICIENT_SIZE 7
#define GPUS              2
#define MOST_GPUS         20
#define LINKS             4
#define FABRIC_HEALTHY \
	0x1aa /* four fields of two bits, each of which says no, and a right configuration */

struct device {
	int index;
};

static struct device devices[MOST_GPUS];
static int calls;

/* The value of the script, or the healthy one; *code: what the call returns. */
static long value(const char *name, int gpu, long healthy, int *code)
{
	const char *path = getenv("FAKE_NVML");
	FILE *file = path ? fopen(path, "r") : NULL;
	char line[128], found[64], word[32];
	long number = healthy;
	int which, error;

	*code = SUCCESS;
	while (file && fgets(line, sizeof(line), file)) {
		if (sscanf(line, "%63s %d %31s %d", found, &which, word, &error) < 3)
			continue;
		if (strcmp(found, name) || which != gpu)
			continue;
		if (!strcmp(word, "hang"))
			pause();
		else if (!strcmp(word, "block"))
			block();
		else if (!strcmp(word, "error"))
			*code = error;
		else if (!strcmp(word, "grow"))
			number = ++calls;
		else
			number = atol(word);
	}
	if (file)
		fclose(file);
	return number;
}

#define GETTER(function, type, name, healthy)                      \
	int function(struct device *device, type *out)             \
	{                                                          \
		int code;                                          \
		*out = value(name, device->index, healthy, &code); \
		return code;                                       \
	}

GETTER(nvmlDeviceGetCurrPcieLinkWidth, unsigned int, "width", 16)
GETTER(nvmlDeviceGetMaxPcieLinkWidth, unsigned int, "max_width", 16)
GETTER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned int, "generation", 5)
GETTER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned int, "max_generation", 5)
GETTER(nvmlDeviceGetPerformanceState, int, "pstate", 0)
GETTER(nvmlDeviceGetPcieReplayCounter, unsigned int, "replays", 3)
GETTER(nvmlDeviceGetPersistenceMode, int, "persistence", 1)
GETTER(nvmlDeviceGetRetiredPagesPendingStatus, int, "pending_page", 0)
GETTER(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, "throttle", 0)
GETTER(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, "old_throttle", 0)

GETTER(nvmlDeviceGetPowerUsage, unsigned int, "power_mw", 70000)
GETTER(nvmlDeviceGetEnforcedPowerLimit, unsigned int, "power_limit_mw", 700000)
GETTER(nvmlDeviceGetPowerManagementDefaultLimit, unsigned int, "default_mw", 700000)

static int only(const char *name, int gpu, int *code)
{
	return value(name, gpu, 0, code);
}

int nvmlInitWithFlags(unsigned int flags)
{
	int code;

	(void)flags;
	only("init", -1, &code);
	return code;
}

int nvmlShutdown(void)
{
	int code;

	only("shutdown", -1, &code);
	return code;
}

int nvmlDeviceGetCount_v2(unsigned int *count)
{
	int code;

	*count = value("count", -1, GPUS, &code);
	return code;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, struct device **device)
{
	int code;

	*device = &devices[index];
	(*device)->index = index;
	only("handle", index, &code);
	return code;
}

int nvmlDeviceGetPciInfo_v3(struct device *device, void *info)
{
	struct {
		char legacy[16];
		unsigned int domain, bus, device, id, subsystem;
		char bus_id[32];
	} *pci = info;
	int code;

	memset(pci, 0, sizeof(*pci));
	snprintf(pci->bus_id, sizeof(pci->bus_id), "00000000:%02X:00.0", 0x5d + device->index);
	pci->id = value("model", device->index, 0x233010de, &code);
	only("pci", device->index, &code);
	return code;
}

int nvmlDeviceGetTotalEccErrors(struct device *device, int type, int counter,
				unsigned long long *count)
{
	int code;

	*count = value(type ? "ecc" : "ecc_corrected", device->index, 0, &code);
	return type < 2 && counter == 0 ? code : INVALID_ARGUMENT;
}

int nvmlDeviceGetEccMode(struct device *device, int *current, int *pending)
{
	int code;

	*current = *pending = value("ecc_mode", device->index, 1, &code);
	return code;
}

int nvmlDeviceGetRemappedRows(struct device *device, unsigned int *corrected,
			      unsigned int *uncorrected, unsigned int *pending,
			      unsigned int *failure)
{
	int code;

	*corrected = *uncorrected = 0;
	*pending = value("remap_pending", device->index, 0, &code);
	*failure = value("remap_failure", device->index, 0, &code);
	return code;
}

int nvmlDeviceGetRetiredPages(struct device *device, int cause, unsigned int *count,
			      unsigned long long *pages)
{
	unsigned int room = pages ? *count : 0;
	int code;

	(void)cause;
	*count = value("retired", device->index, 0, &code);
	if (*count > room)
		return INSUFFICIENT_SIZE;
	for (unsigned int i = 0; i < *count; i++)
		pages[i] = i;
	return code;
}

int nvmlDeviceGetTemperature(struct device *device, int sensor, unsigned int *degrees)
{
	int code;

	(void)sensor;
	*degrees = value("temperature", device->index, 40, &code);
	return code;
}

int nvmlDeviceGetTemperatureThreshold(struct device *device, int kind, unsigned int *degrees)
{
	int code;

	*degrees = value("threshold", device->index, 87, &code);
	return kind == 1 ? code : INVALID_ARGUMENT;
}

int nvmlDeviceGetNvLinkState(struct device *device, unsigned int link, int *state)
{
	int code;

	if (link >= LINKS)
		return INVALID_ARGUMENT;
	*state = link < value("links", device->index, LINKS, &code);
	return code;
}

int nvmlDeviceGetNvLinkErrorCounter(struct device *device, unsigned int link, int counter,
				    unsigned long long *count)
{
	static const char *names[] = { "link_replays", "link_recoveries", "link_crc" };
	int code;

	*count = link ? 0 : value(names[counter], device->index, 0, &code);
	return link ? SUCCESS : code;
}

struct field {
	unsigned int id, scope;
	long long time_us, latency_us;
	int type, code;
	unsigned long long value;
};

static const char *field_name(unsigned int id)
{
	switch (id) {
	case 138:
		return "nvlink_sent_kib";
	case 139:
		return "nvlink_received_kib";
	case 197:
		return "pcie_sent";
	case 198:
		return "pcie_received";
	case 206:
		return "link_malformed";
	case 207:
		return "link_overruns";
	case 208:
		return "link_received_errors";
	case 211:
		return "link_integrity";
	case 215:
		return "link_recovery_events";
	case 219:
		return "link_effective";
	default:
		return "recovery";
	}
}

int nvmlDeviceGetFieldValues(struct device *device, int count, struct field *fields)
{
	for (int i = 0; i < count; i++) {
		const char *name = field_name(fields[i].id);
		int other_link = !strncmp(name, "link_", 5) && fields[i].scope;

		fields[i].value = value(name, other_link ? -1 : device->index, 0, &fields[i].code);
	}
	return SUCCESS;
}

struct fabric {
	unsigned int version;
	unsigned char cluster[16];
	int status;
	unsigned int clique;
	unsigned int state;
	unsigned int health;
};

int nvmlDeviceGetGpuFabricInfoV(struct device *device, struct fabric *info)
{
	int code;

	info->status = value("fabric_status", device->index, SUCCESS, &code);
	info->health = value("fabric_health", device->index, FABRIC_HEALTHY, &code);
	info->state = value("fabric", device->index, 3, &code);
	return code;
}

struct process {
	unsigned int pid;
	unsigned long long memory;
	unsigned int gpu_instance, compute_instance;
};

int nvmlDeviceGetComputeRunningProcesses_v3(struct device *device, unsigned int *count,
					    struct process *processes)
{
	int code, pid = value("process", device->index, 0, &code);
	unsigned int room = processes ? *count : 0;

	*count = pid != 0;
	if (*count > room)
		return INSUFFICIENT_SIZE;
	if (pid)
		processes[0] =
			(struct process){ pid, value("process_mib", device->index, 1, &code) << 20,
					  -1, -1 };
	return code;
}

int nvmlDeviceGetUtilizationRates(struct device *device, unsigned int rates[2])
{
	int code;

	rates[0] = value("utilization", device->index, 0, &code);
	rates[1] = rates[0] / 2;
	return code;
}

int nvmlDeviceGetMemoryInfo_v2(struct device *device, void *memory)
{
	struct {
		unsigned int version;
		unsigned long long total, reserved, free, used;
	} *info = memory;
	int code;

	info->used = value("memory_mib", device->index, 0, &code) << 20;
	info->total = 80UL << 30;
	return code;
}

static int word(const char *name, int gpu, const char *text, char *out, unsigned int size)
{
	int code;

	snprintf(out, size, "%s%d", text, gpu);
	only(name, gpu, &code);
	return code;
}

int nvmlDeviceGetUUID(struct device *device, char *out, unsigned int size)
{
	return word("uuid", device->index, "GPU-7c0e-", out, size);
}

int nvmlDeviceGetName(struct device *device, char *out, unsigned int size)
{
	return word("name", device->index, "Stub ", out, size);
}

int nvmlDeviceGetSerial(struct device *device, char *out, unsigned int size)
{
	return word("serial", device->index, "16500210000", out, size);
}

int nvmlDeviceGetClockInfo(struct device *device, int kind, unsigned int *mhz)
{
	int code;

	*mhz = value(kind == 1 ? "sm_clock" : "memory_clock", device->index, 1980, &code);
	return code;
}

static int sm_clock(const char *name, struct device *device, int kind, unsigned int *mhz)
{
	int code;

	*mhz = value(name, device->index, 1980, &code);
	return kind == 1 ? code : INVALID_ARGUMENT;
}

int nvmlDeviceGetMaxClockInfo(struct device *device, int kind, unsigned int *mhz)
{
	return sm_clock("highest_clock", device, kind, mhz);
}

int nvmlDeviceGetApplicationsClock(struct device *device, int kind, unsigned int *mhz)
{
	return sm_clock("set_clock", device, kind, mhz);
}
