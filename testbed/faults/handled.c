// Faults that a handler repairs, as virtual machines and sanitizers make them on purpose: COUNT of
// them, none of which the kernel reports, then one without a handler. Waits for a line
// before it begins.
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

static sigjmp_buf back;
static volatile int *volatile nowhere;

static void mend(int number)
{
	(void)number;
	siglongjmp(back, 1);
}

int main(int argc, char **argv)
{
	volatile int left = argc > 1 ? atoi(argv[1]) : 1;

	signal(SIGSEGV, mend);
	getchar();
	while (sigsetjmp(back, 1), left-- > 0)
		*nowhere = 1;
	signal(SIGSEGV, SIG_DFL);
	*nowhere = 1;
	return 0;
}
