// Takes memory until it is killed.
#include <stdlib.h>
#include <string.h>

int main(void)
{
	for (;;) {
		char *memory = malloc(1 << 20);

		if (memory)
			memset(memory, 1, 1 << 20);
	}
}
