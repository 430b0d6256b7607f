// SPDX-License-Identifier: Apache-2.0
/*
 * Stub of nvidia-bug-report.sh in its own root: writes what it is asked for, packed, and
 * counts its runs in /runs. /mode changes it: "hang" writes the plain text and never ends,
 * "nothing" writes none.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	char mode[16] = "", path[256];
	FILE *file = fopen("/mode", "r");

	if (file && fscanf(file, "%15s", mode) != 1)
		mode[0] = 0;
	file = fopen("/runs", "a");
	fprintf(file, "%s\n", argv[1]);
	fclose(file);
	if (argc < 4 || strcmp(argv[2], "--output-file"))
		return 2;
	if (!strcmp(mode, "nothing"))
		return 1;
	snprintf(path, sizeof(path), "%s%s", argv[3], strcmp(mode, "hang") ? ".gz" : "");
	file = fopen(path, "w");
	fprintf(file, "a report\n");
	fclose(file);
	if (!strcmp(mode, "hang"))
		pause();
	return 0;
}
