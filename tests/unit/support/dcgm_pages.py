"""Pages of a dcgm-exporter."""

from __future__ import annotations

OWN, OTHER = "GPU-7c0e-0", "GPU-ffff-9"


LABELS = 'gpu="0",UUID="{uuid}",pci_bus_id="00000000:5D:00.0",device="nvidia0",modelName="Stub",Hostname="n1"'


PAGE = """# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{{{labels},container="main",namespace="team",pod="train-0"}} 97
# TYPE DCGM_FI_DEV_FB_USED gauge
DCGM_FI_DEV_FB_USED{{{labels}}} 2048
# TYPE DCGM_FI_DEV_POWER_USAGE gauge
DCGM_FI_DEV_POWER_USAGE{{{labels}}} 421.5
DCGM_FI_DEV_SM_CLOCK{{{labels}}} 1755
DCGM_FI_DEV_GPU_TEMP{{{labels}}} 61
DCGM_FI_DEV_MEM_COPY_UTIL{{{labels}}} NaN
DCGM_FI_DEV_CLOCKS_EVENT_REASONS{{{labels}}} 4
DCGM_FI_PROF_PCIE_TX_BYTES{{{labels}}} 1000000
DCGM_FI_DEV_GPU_UTIL{{{labels},GPU_I_PROFILE="1g.10gb",GPU_I_ID="7"}} 3
"""


def page(uuid: str = OWN) -> str:
    return PAGE.format(labels=LABELS.format(uuid=uuid))
