// SPDX-License-Identifier: GPL-2.0-only
/*
 * Stub of the GPU driver in tests: loads as "nvidia", has its device files, and the functions
 * and the tracepoint of its interface layer that a sensor attaches to, with their arguments. What
 * it says is what the test writes to /proc/driver/nvidia/stub, one command a write:
 *
 *   print TEXT              the driver's way to print, from the kernel, without an error number
 *   report NUMBER BDF TEXT  the driver's way to report an Xid, without a printed line
 *   xid NUMBER BDF TEXT     both, in the driver's order: print, then report
 *   storm COUNT NUMBER BDF  many of them
 *
 * ioctl(fd, 101, ms) sleeps so that signals end it, ioctl(fd, 102, ms) in state D. Lower numbers
 * are the kernel's own for every file.
 */
#define pr_fmt(fmt) fmt
#include <linux/cdev.h>
#include <linux/delay.h>
#include <linux/device.h>
#include <linux/fs.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/version.h>

#define CREATE_TRACE_POINTS
#include "trace.h"

#define MAJOR_NUMBER  195
#define CONTROL_MINOR 255
#define MIG_MINOR     200
/* The compiler must not clone, inline or drop what a probe looks for by name. */
#define PROBED __attribute__((__noipa__))

static char *gpu = "0000:5d:00.0";
module_param(gpu, charp, 0444);
MODULE_PARM_DESC(gpu, "PCI address of /dev/nvidia0");
static char *second;
module_param(second, charp, 0444);
MODULE_PARM_DESC(second, "PCI address of /dev/nvidia1; there is none by default");

static struct class *device_class;
static struct cdev device_files;
static struct proc_dir_entry *proc_root, *caps_root;

void nv_printf(u32 level, const char *format, ...);
PROBED void nv_printf(u32 level, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vprintk(format, arguments);
	va_end(arguments);
}
EXPORT_SYMBOL(nv_printf);

void nv_report_error(struct pci_dev *dev, u32 error_number, const char *format, va_list ap);
PROBED void nv_report_error(struct pci_dev *dev, u32 error_number, const char *format, va_list ap)
{
	char *text = kvasprintf(GFP_KERNEL, format, ap);

	if (text)
		trace_nvidia_dev_xid(dev, error_number, text);
	kfree(text);
}

static void report(struct pci_dev *dev, u32 number, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	nv_report_error(dev, number, format, arguments);
	va_end(arguments);
}

static PROBED int nvidia_open(struct inode *inode, struct file *file)
{
	return 0;
}

static PROBED int nvidia_close(struct inode *inode, struct file *file)
{
	return 0;
}

static PROBED long nvidia_unlocked_ioctl(struct file *file, unsigned int command, unsigned long ms)
{
	switch (command) {
	case 101:
		return msleep_interruptible(ms) ? -EINTR : 0;
	case 102:
		msleep(ms);
		return 0;
	}
	return -ENOTTY;
}

static const struct file_operations operations = {
	.owner = THIS_MODULE,
	.open = nvidia_open,
	.release = nvidia_close,
	.unlocked_ioctl = nvidia_unlocked_ioctl,
};

static struct pci_dev *find_device(const char *bdf)
{
	unsigned int domain, bus, slot, function;

	if (sscanf(bdf, "%x:%x:%x.%u", &domain, &bus, &slot, &function) != 4)
		return NULL;
	return pci_get_domain_bus_and_slot(domain, bus, PCI_DEVFN(slot, function));
}

static int say(char *command)
{
	unsigned int number, count = 1;
	bool print = true, announce = true;
	struct pci_dev *dev;
	char bdf[32];
	int used = 0;

	if (!strncmp(command, "print ", 6)) {
		nv_printf(4, KERN_CONT "%s\n", command + 6);
		return 0;
	}
	if (sscanf(command, "storm %u %u %31s%n", &count, &number, bdf, &used) == 3)
		;
	else if (sscanf(command, "report %u %31s%n", &number, bdf, &used) == 2)
		print = false;
	else if (sscanf(command, "xid %u %31s%n", &number, bdf, &used) != 2)
		return -EINVAL;
	dev = find_device(bdf);
	if (!dev)
		return -ENODEV;
	command = skip_spaces(command + used);
	while (count--) {
		if (print)
			nv_printf(4, KERN_CONT "NVRM: Xid (PCI:%.*s): %u, %s\n",
				  (int)(strrchr(bdf, '.') - bdf), bdf, number, command);
		if (announce)
			report(dev, number, "%s", command);
	}
	pci_dev_put(dev);
	return 0;
}

static ssize_t stub_write(struct file *file, const char __user *text, size_t size, loff_t *offset)
{
	char *command = memdup_user_nul(text, size);
	int result;

	if (IS_ERR(command))
		return PTR_ERR(command);
	result = say(strim(command));
	kfree(command);
	return result ? result : size;
}

static const struct proc_ops stub_operations = { .proc_write = stub_write };

/* The file's private data is the PCI address. */
static int information_show(struct seq_file *file, void *unused)
{
	bool is_second = file->private == second;

	seq_printf(file, "Model: \t\t Stub\nIRQ:   \t\t 0\n");
	seq_printf(file, "GPU UUID: \t GPU-00112233-4455-6677-8899-aabbccddee%s\n",
		   is_second ? "00" : "ff");
	seq_printf(file, "Bus Location: \t %s\nDevice Minor: \t %d\n", (char *)file->private,
		   is_second);
	return 0;
}

/* One MIG instance, number 3, whose device file has the minor MIG_MINOR. */
static int mig_minors_show(struct seq_file *file, void *unused)
{
	seq_printf(file, "config 1\nmonitor 2\ngpu0/gi3/access %d\n", MIG_MINOR);
	return 0;
}

static int version_show(struct seq_file *file, void *unused)
{
	seq_puts(file, "NVRM version: NVIDIA UNIX Open Kernel Module  575.51.02  Stub\n");
	return 0;
}

static void make_gpu(struct proc_dir_entry *gpus, char *address, int minor)
{
	proc_create_single_data("information", 0444, proc_mkdir(address, gpus), information_show,
				address);
	device_create(device_class, NULL, MKDEV(MAJOR_NUMBER, minor), NULL, "nvidia%d", minor);
}

static void make_files(void)
{
	struct proc_dir_entry *gpus;

	proc_root = proc_mkdir("driver/nvidia", NULL);
	proc_create("stub", 0200, proc_root, &stub_operations);
	proc_create_single("version", 0444, proc_root, version_show);
	gpus = proc_mkdir("gpus", proc_root);
	make_gpu(gpus, gpu, 0);
	if (second)
		make_gpu(gpus, second, 1);
	caps_root = proc_mkdir("driver/nvidia-caps", NULL);
	proc_create_single("mig-minors", 0444, caps_root, mig_minors_show);
	device_create(device_class, NULL, MKDEV(MAJOR_NUMBER, MIG_MINOR), NULL,
		      "nvidia-caps!nvidia-cap%d", MIG_MINOR);
	device_create(device_class, NULL, MKDEV(MAJOR_NUMBER, CONTROL_MINOR), NULL, "nvidiactl");
}

static int __init stub_init(void)
{
	int error = register_chrdev_region(MKDEV(MAJOR_NUMBER, 0), 256, "nvidia");

	if (error)
		return error;
	cdev_init(&device_files, &operations);
	error = cdev_add(&device_files, MKDEV(MAJOR_NUMBER, 0), 256);
	if (error)
		goto unregister;
/* 1aaba11da9aa ("driver core: class: remove module * from class_create()", 6.4) */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 4, 0)
	device_class = class_create("nvidia");
#else
	device_class = class_create(THIS_MODULE, "nvidia");
#endif
	if (IS_ERR(device_class)) {
		error = PTR_ERR(device_class);
		goto remove;
	}
	make_files();
	return 0;
remove:
	cdev_del(&device_files);
unregister:
	unregister_chrdev_region(MKDEV(MAJOR_NUMBER, 0), 256);
	return error;
}

static void __exit stub_exit(void)
{
	proc_remove(proc_root);
	proc_remove(caps_root);
	device_destroy(device_class, MKDEV(MAJOR_NUMBER, MIG_MINOR));
	device_destroy(device_class, MKDEV(MAJOR_NUMBER, 0));
	if (second)
		device_destroy(device_class, MKDEV(MAJOR_NUMBER, 1));
	device_destroy(device_class, MKDEV(MAJOR_NUMBER, CONTROL_MINOR));
	class_destroy(device_class);
	cdev_del(&device_files);
	unregister_chrdev_region(MKDEV(MAJOR_NUMBER, 0), 256);
}

module_init(stub_init);
module_exit(stub_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("stub for the GPU driver in tests");
MODULE_VERSION("575.51.02");
