// Two threads that take two mutexes crosswise, one that joins the first; prints "NAME TID" for
// each.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER, two = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t both_hold_one;
static pthread_t first_thread;

static void announce(const char *name)
{
	printf("%s %ld\n", name, syscall(SYS_gettid));
	fflush(stdout);
}

static void *first(void *unused)
{
	announce("first");
	pthread_mutex_lock(&one);
	pthread_barrier_wait(&both_hold_one);
	pthread_mutex_lock(&two);
	return unused;
}

static void *second(void *unused)
{
	announce("second");
	pthread_mutex_lock(&two);
	pthread_barrier_wait(&both_hold_one);
	pthread_mutex_lock(&one);
	return unused;
}

static void *joiner(void *unused)
{
	announce("joiner");
	pthread_join(first_thread, NULL);
	return unused;
}

int main(void)
{
	pthread_t thread;

	pthread_barrier_init(&both_hold_one, NULL, 2);
	pthread_create(&first_thread, NULL, first, NULL);
	pthread_create(&thread, NULL, second, NULL);
	pthread_create(&thread, NULL, joiner, NULL);
	getchar();
	_exit(0);
}
