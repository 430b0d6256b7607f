// SPDX-License-Identifier: Apache-2.0
/*
 * Stub of a vendor's program in its own root: prints /answer, and writes how it was started:
 * /arguments, /environment, and /network, where 1 is a loopback that is up. Without /answer it
 * never ends.
 */
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

static void write_lines(const char *path, char **lines)
{
	FILE *file = fopen(path, "w");

	for (; *lines; lines++)
		fprintf(file, "%s\n", *lines);
	fclose(file);
}

static void write_network(void)
{
	struct ifreq request = { .ifr_name = "lo" };
	FILE *file = fopen("/network", "w");

	ioctl(socket(AF_INET, SOCK_DGRAM, 0), SIOCGIFFLAGS, &request);
	fprintf(file, "%d", !!(request.ifr_flags & IFF_UP));
	fclose(file);
}

int main(int argc, char **argv, char **environment)
{
	FILE *answer = fopen("/answer", "r");
	char line[4096];

	(void)argc;
	write_lines("/environment", environment);
	write_network();
	write_lines("/arguments", argv);
	if (!answer)
		pause();
	while (fgets(line, sizeof(line), answer))
		fputs(line, stdout);
	return 0;
}
