// SPDX-License-Identifier: Apache-2.0
/*
 * The RAS server of a stub of NCCL: protocol 2 in words, on the port of
 * NCCL_RAS_ADDR, which ranks share as those of NCCL do. A source that includes
 * this says what it reports (src/ras/client_support.cc).
 */
#include <arpa/inet.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void ras_report(FILE *to);

static void ras_talk(FILE *from, FILE *to)
{
	char line[256];

	while (fgets(line, sizeof(line), from)) {
		if (strstr(line, "STATUS")) {
			ras_report(to);
			return;
		}
		fputs(strncmp(line, "CLIENT", 6) ? "OK\n" : "SERVER PROTOCOL 2\n", to);
		fflush(to);
	}
}

static void *ras_answer(void *argument)
{
	int listener = (int)(intptr_t)argument;

	for (;;) {
		int peer = accept(listener, NULL, NULL);
		FILE *from = fdopen(peer, "r"), *to = fdopen(dup(peer), "w");

		if (from && to)
			ras_talk(from, to);
		if (to)
			fclose(to);
		if (from)
			fclose(from);
	}
	return NULL;
}

/* Returns 0 if it serves, or was given no address; another number if it cannot. */
static int ras_begin(void)
{
	const char *address = getenv("NCCL_RAS_ADDR"),
		   *port = address ? strrchr(address, ':') : NULL;
	struct sockaddr_in at = { .sin_family = AF_INET,
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int listener, one = 1;
	pthread_t thread;

	if (!port)
		return 0;
	at.sin_port = htons(atoi(port + 1));
	listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	setsockopt(listener, SOL_SOCKET, SO_REUSEPORT, &one, sizeof(one));
	if (bind(listener, (struct sockaddr *)&at, sizeof(at)) || listen(listener, 8))
		return 2;
	if (pthread_create(&thread, NULL, ras_answer, (void *)(intptr_t)listener))
		return 1;
	pthread_setname_np(thread, "NCCL RAS");
	return 0;
}
