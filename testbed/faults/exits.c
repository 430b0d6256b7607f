// Ends by itself, at once: exits CODE, exits through a thread, or by a signal of its own making.
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void *exit_all(void *code)
{
	usleep(1000);
	exit(*(int *)code);
}

static void exit_by_thread(int code, int keep_leader)
{
	pthread_t thread;

	pthread_create(&thread, NULL, exit_all, &code);
	if (keep_leader)
		pthread_join(thread, NULL);
	pthread_exit(NULL);
}

int main(int argc, char **argv)
{
	const char *how = argv[1];

	if (!strcmp(how, "kill"))
		raise(SIGKILL);
	if (!strcmp(how, "abort"))
		abort();
	if (!strcmp(how, "segfault"))
		*(volatile int *)8 = 1;
	if (!strcmp(how, "thread"))
		exit_by_thread(4, 1);
	if (!strcmp(how, "leader-first"))
		exit_by_thread(5, 0);
	return atoi(how);
}
