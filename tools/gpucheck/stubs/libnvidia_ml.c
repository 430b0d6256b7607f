// SPDX-License-Identifier: Apache-2.0
/*
 * Stub of libnvidia-ml.so.1: the calls whose cost is measured. Those for PCIe bytes take their
 * time, as the real ones do; NVLink is not supported. Signatures: nvml.h.
 */
#include <unistd.h>

#define NOT_SUPPORTED 3
#define PCIE_US       2000

int nvmlInit_v2(void)
{
	return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device)
{
	*device = &nvmlInit_v2;
	return index ? 2 : 0;
}

#define ANSWERS(name)     \
	int name(void)    \
	{                 \
		return 0; \
	}

ANSWERS(nvmlDeviceGetUtilizationRates)
ANSWERS(nvmlDeviceGetMemoryInfo)
ANSWERS(nvmlDeviceGetPowerUsage)
ANSWERS(nvmlDeviceGetTotalEnergyConsumption)
ANSWERS(nvmlDeviceGetClockInfo)
ANSWERS(nvmlDeviceGetCurrentClocksThrottleReasons)
ANSWERS(nvmlDeviceGetTemperature)
ANSWERS(nvmlDeviceGetPcieReplayCounter)
ANSWERS(nvmlDeviceGetTotalEccErrors)
ANSWERS(nvmlDeviceGetComputeRunningProcesses_v3)

int nvmlDeviceGetPcieThroughput(void)
{
	usleep(PCIE_US);
	return 0;
}

int nvmlDeviceGetNvLinkState(void)
{
	return NOT_SUPPORTED;
}
