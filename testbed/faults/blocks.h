/* SPDX-License-Identifier: Apache-2.0 */
/* A call that never returns, for stubs of a driver's library. */
#ifndef BLOCKS_H
#define BLOCKS_H

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

/*
 * In state D, as in a driver that does not answer: the parent of a vfork waits for its child. The
 * kernel does so killably (wait_for_vfork_done): SIGKILL ends it, as it would not end a driver's
 * wait that is uninterruptible.
 */
static void block(void)
{
	pid_t parent = getpid();

	if (vfork() == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent) /* it was killed before that */
			_exit(0);
		for (;;)
			pause();
	}
}

#endif
