// SPDX-License-Identifier: GPL-2.0-only
/*
 * Stub of the unified memory driver in tests: a CUDA process registers with the real one, once
 * for each GPU, that it uses it. ioctl(fd, 37, params) calls the same function with the same
 * arguments.
 */
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/uaccess.h>

#define REGISTER_GPU   37
#define UNREGISTER_GPU 38
#define PROBED         __attribute__((__noipa__))

/* kernel-open/nvidia-uvm/uvm_ioctl.h, unchanged from 515 to 595 */
struct register_params {
	u8 uuid[16];
	u8 numa_enabled;
	s32 numa_node;
	s32 control_fd;
	u32 client;
	u32 partition; /* not 0: a MIG instance */
	u32 status;
};

static PROBED u32 uvm_api_register_gpu(struct register_params *params, struct file *file)
{
	return 0;
}

/* A compiler may give a function that it changed another name, as here by hand. */
static u32 uvm_api_unregister_gpu(struct register_params *params,
				  struct file *file) __asm__("uvm_api_unregister_gpu.constprop.0");

static PROBED u32 uvm_api_unregister_gpu(struct register_params *params, struct file *file)
{
	return 0;
}

static long uvm_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	struct register_params params;

	if (copy_from_user(&params, (void __user *)argument, sizeof(params)))
		return -EFAULT;
	if (command == REGISTER_GPU)
		return uvm_api_register_gpu(&params, file);
	if (command == UNREGISTER_GPU)
		return uvm_api_unregister_gpu(&params, file);
	return -ENOTTY;
}

static const struct file_operations operations = {
	.owner = THIS_MODULE,
	.unlocked_ioctl = uvm_ioctl,
};

static struct miscdevice device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "nvidia-uvm",
	.fops = &operations,
};

module_misc_device(device);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("stub for the unified memory driver in tests");
