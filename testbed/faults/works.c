// Does the given amount of work of one kind after each line read: works cpu MILLISECONDS | write
// PATH BYTES | read PATH BYTES | fault PAGES | threads COUNT (each burns 2 ms and ends); prints a
// line when done.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static void burn(clockid_t clock, long milliseconds)
{
	struct timespec begin, now;

	clock_gettime(clock, &begin);
	do
		clock_gettime(clock, &now);
	while ((now.tv_sec - begin.tv_sec) * 1000 + (now.tv_nsec - begin.tv_nsec) / 1000000 <
	       milliseconds);
}

static void *burn_a_little(void *unused)
{
	burn(CLOCK_THREAD_CPUTIME_ID, 2);
	return unused;
}

static void transfer(const char *path, long bytes, int writes)
{
	int fd = open(path, writes ? O_WRONLY | O_CREAT | O_TRUNC | O_DIRECT : O_RDONLY | O_DIRECT,
		      0600);
	void *block;

	if (fd < 0 || posix_memalign(&block, 4096, 4096))
		abort();
	memset(block, 7, 4096);
	for (long done = 0; done < bytes; done += 4096)
		if ((writes ? write(fd, block, 4096) : read(fd, block, 4096)) != 4096)
			abort();
	close(fd);
}

static void touch(long pages)
{
	char *memory = mmap(NULL, pages * 4096, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	madvise(memory, pages * 4096, MADV_NOHUGEPAGE);
	for (long i = 0; i < pages; i++)
		memory[i * 4096] = 1;
	munmap(memory, pages * 4096);
}

int main(int argc, char **argv)
{
	const char *what = argv[1];
	char line[16];

	while (fgets(line, sizeof(line), stdin)) {
		if (!strcmp(what, "cpu"))
			burn(CLOCK_PROCESS_CPUTIME_ID, atol(argv[2]));
		if (!strcmp(what, "write") || !strcmp(what, "read"))
			transfer(argv[2], atol(argv[3]), what[0] == 'w');
		if (!strcmp(what, "fault"))
			touch(atol(argv[2]));
		for (int i = 0; !strcmp(what, "threads") && i < atoi(argv[2]); i++) {
			pthread_t thread;

			pthread_create(&thread, NULL, burn_a_little, NULL);
			pthread_join(thread, NULL);
		}
		puts("done");
		fflush(stdout);
	}
	return 0;
}
