// SPDX-License-Identifier: GPL-2.0-only
/*
 * Faults that no emulated device has, raised through the kernel's own interfaces for drivers. One
 * command a write to /proc/kcover_faults:
 *
 *   health REPORTER TEXT    a network device's driver reports (devlink health: fw_fatal or tx)
 *   memory LABEL            a memory controller reports an uncorrected error (EDAC)
 *   processor STATE         firmware reports an arm64 processor, whose running state this is
 *   section SEVERITY PART   firmware reports something in a vendor's own form (GHES severity)
 *   lockup SECONDS          the writer's CPU stays in the kernel and gives way to interrupts only
 */
#include <linux/cper.h>
#include <linux/device.h>
#include <linux/edac.h>
#include <linux/ktime.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/platform_device.h>
#include <linux/proc_fs.h>
#include <linux/slab.h>
#include <linux/version.h>
#include <net/devlink.h>
#include <ras/ras_event.h>

static char *nic = "0000:5d:00.0";
module_param(nic, charp, 0444);
MODULE_PARM_DESC(nic, "PCI address of the network device");

static struct pci_dev *device;
static struct devlink *link;
static struct platform_device *controller_device;
static struct mem_ctl_info *controller;

/* drivers/edac/edac_mc.h, which no package ships; unchanged from 5.10 to 7.3 */
struct mem_ctl_info *edac_mc_alloc(unsigned int mc_num, unsigned int n_layers,
				   struct edac_mc_layer *layers, unsigned int sz_pvt);
int edac_mc_add_mc_with_groups(struct mem_ctl_info *mci, const struct attribute_group **groups);
struct mem_ctl_info *edac_mc_del_mc(struct device *dev);
void edac_mc_free(struct mem_ctl_info *mci);
void edac_mc_handle_error(const enum hw_event_mc_err_type type, struct mem_ctl_info *mci,
			  const u16 error_count, const unsigned long page_frame_number,
			  const unsigned long offset_in_page, const unsigned long syndrome,
			  const int top_layer, const int mid_layer, const int low_layer,
			  const char *msg, const char *other_detail);

static const struct devlink_ops link_operations = {};
/* as mlx5 has them: one for what it cannot mend, and one for a queue that it restarts */
static const struct devlink_health_reporter_ops health_operations[] = {
	{ .name = "fw_fatal" },
	{ .name = "tx" },
};
static struct devlink_health_reporter *reporters[ARRAY_SIZE(health_operations)];

static void make_reporters(void)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(reporters); i++)
/* d2b8c7ba3c79 ("devlink: Move graceful period parameter to reporter ops", 6.18) */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 18, 0)
		reporters[i] = devlink_health_reporter_create(link, &health_operations[i], NULL);
#else
		reporters[i] = devlink_health_reporter_create(link, &health_operations[i], 0, NULL);
#endif
}

static int report_health(char *words)
{
	char *name = strsep(&words, " ");
	int i;

	for (i = 0; words && i < ARRAY_SIZE(reporters); i++) {
		if (strcmp(name, health_operations[i].name))
			continue;
		devlink_health_report(reporters[i], words, NULL);
		return 0;
	}
	return -EINVAL;
}

static int make_link(void)
{
	unsigned int domain, bus, slot, function;

	if (sscanf(nic, "%x:%x:%x.%u", &domain, &bus, &slot, &function) != 4)
		return -EINVAL;
	device = pci_get_domain_bus_and_slot(domain, bus, PCI_DEVFN(slot, function));
	if (!device)
		return -ENODEV;
/* 919d13a7e455 ("devlink: Set device as early as possible", 5.15) */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(5, 15, 0)
	link = devlink_alloc(&link_operations, 0, &device->dev);
#else
	link = devlink_alloc(&link_operations, 0);
#endif
	if (!link)
		return -ENOMEM;
	make_reporters();
#if LINUX_VERSION_CODE >= KERNEL_VERSION(5, 15, 0)
	devlink_register(link);
#else
	return devlink_register(link, &device->dev);
#endif
	return 0;
}

static int make_controller(void)
{
	struct edac_mc_layer layer = { .type = EDAC_MC_LAYER_ALL_MEM, .size = 1 };

	controller_device = platform_device_register_simple("kcover-memory", -1, NULL, 0);
	if (IS_ERR(controller_device))
		return PTR_ERR(controller_device);
	controller = edac_mc_alloc(0, 1, &layer, 0);
	if (!controller)
		return -ENOMEM;
	controller->pdev = &controller_device->dev;
	controller->mtype_cap = MEM_FLAG_DDR4;
	controller->edac_ctl_cap = EDAC_FLAG_SECDED;
	controller->edac_cap = EDAC_FLAG_SECDED;
	controller->mod_name = KBUILD_MODNAME;
	controller->ctl_name = "stub";
	controller->dev_name = "stub";
	controller->dimms[0]->nr_pages = 1; /* an empty slot has no name */
	return edac_mc_add_mc_with_groups(controller, NULL);
}

/* log_arm_hw_error() of drivers/ras/ras.c is not exported; the tracepoint that it calls is */
static void report_processor(u32 running_state)
{
	struct cper_sec_proc_arm section = {
		.validation_bits = CPER_ARM_VALID_MPIDR | CPER_ARM_VALID_RUNNING_STATE,
		.mpidr = 0x80000100,
		.running_state = running_state,
	};

#ifdef ARM_EVENT_HAS_ALL
	trace_arm_event(&section, NULL, 0, NULL, 0, NULL, 0, 0, 0);
#else
	trace_arm_event(&section);
#endif
}

static int report_section(char *words)
{
	guid_t section = GUID_INIT(0x6d5244f2, 0x2712, 0x11ec, 0xbe, 0xa7, 0xcb, 0x3f, 0xdb, 0x95,
				   0xc7, 0x86);
	char *severity = strsep(&words, " ");
	u8 number;

	if (!words || kstrtou8(severity, 10, &number))
		return -EINVAL;
	trace_non_standard_event(&section, &guid_null, words, number, words, 0);
	return 0;
}

static void lock_up(u32 seconds)
{
	ktime_t end = ktime_add_ms(ktime_get(), 1000ULL * seconds);

	preempt_disable();
	while (ktime_before(ktime_get(), end))
		cpu_relax();
	preempt_enable();
}

static int raise_fault(char *command)
{
	u32 state;
	u32 seconds;

	if (sscanf(command, "processor %u", &state) == 1) {
		report_processor(state);
		return 0;
	}
	if (sscanf(command, "lockup %u", &seconds) == 1) {
		lock_up(seconds);
		return 0;
	}
	if (!strncmp(command, "section ", 8))
		return report_section(command + 8);
	if (!strncmp(command, "health ", 7))
		return report_health(command + 7);
	if (!strncmp(command, "memory ", 7)) {
		strscpy(controller->dimms[0]->label, command + 7,
			sizeof(controller->dimms[0]->label));
		edac_mc_handle_error(HW_EVENT_ERR_UNCORRECTED, controller, 1, 42, 0, 0, 0, -1, -1,
				     "raised by a test", "");
		return 0;
	}
	return -EINVAL;
}

static ssize_t faults_write(struct file *file, const char __user *text, size_t size, loff_t *offset)
{
	char *command = memdup_user_nul(text, size);
	int result;

	if (IS_ERR(command))
		return PTR_ERR(command);
	result = raise_fault(strim(command));
	kfree(command);
	return result ? result : size;
}

static const struct proc_ops operations = { .proc_write = faults_write };

static int __init faults_init(void)
{
	int error = make_link();

	if (!error)
		error = make_controller();
	/* never unloaded: the guest ends with the test */
	if (!error && !proc_create("kcover_faults", 0200, NULL, &operations))
		error = -ENOMEM;
	return error;
}

module_init(faults_init);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("faults that no emulated device has, for tests");
