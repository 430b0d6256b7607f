// Says it is ready, waits for a line, then runs a program COUNT times, one after the other, and
// prints its pids.
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	int count = atoi(argv[1]);

	setvbuf(stdout, NULL, _IOLBF, 0);
	puts("ready");
	getchar();
	for (int i = 0; i < count; i++) {
		pid_t pid = fork();

		if (pid == 0) {
			execv(argv[2], argv + 2);
			_exit(127);
		}
		waitpid(pid, NULL, 0);
		printf("%d\n", pid);
	}
	return 0;
}
