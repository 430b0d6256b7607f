// Many parked threads, or many descriptors: crowd threads|files|sockets COUNT; prints a line when
// done.
#include <arpa/inet.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;

static void *park(void *unused)
{
	pthread_mutex_lock(&gate);
	return unused;
}

static int make_threads(int count)
{
	pthread_attr_t small;
	pthread_t thread;

	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 65536);
	pthread_mutex_lock(&gate);
	for (int i = 0; i < count; i++)
		if (pthread_create(&thread, &small, park, NULL))
			return i;
	return count;
}

static int make_files(int count)
{
	for (int i = 0; i < count; i++)
		if (open("/dev/null", O_RDONLY) < 0)
			return i;
	return count;
}

static int make_sockets(int count)
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	socklen_t size = sizeof(address);

	inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
	if (bind(listener, (void *)&address, size) || listen(listener, 4096) ||
	    getsockname(listener, (void *)&address, &size))
		return -1;
	for (int i = 0; i < count; i++)
		if (connect(socket(AF_INET, SOCK_STREAM, 0), (void *)&address, size) ||
		    accept(listener, NULL, NULL) < 0)
			return i;
	return count;
}

int main(int argc, char **argv)
{
	struct rlimit limit = { 65536, 65536 };
	int count = atoi(argv[2]), made = 0;

	setrlimit(RLIMIT_NOFILE, &limit);
	if (!strcmp(argv[1], "threads"))
		made = make_threads(count);
	if (!strcmp(argv[1], "files"))
		made = make_files(count);
	if (!strcmp(argv[1], "sockets"))
		made = make_sockets(count);
	printf("%d\n", made);
	fflush(stdout);
	getchar();
	_exit(0);
}
