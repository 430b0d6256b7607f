/* The first process of every pod: holds its namespaces and reaps what loses its parent. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void leave(int signal_number)
{
	(void)signal_number;
	_exit(0);
}

static void reap(int signal_number)
{
	(void)signal_number;
	while (waitpid(-1, NULL, WNOHANG) > 0)
		;
}

int main(void)
{
	signal(SIGINT, leave);
	signal(SIGTERM, leave);
	signal(SIGCHLD, reap);
	for (;;)
		pause();
}
