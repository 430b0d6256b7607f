/* Two threads share a loop badly: the first is done at once and, as OMP_WAIT_POLICY=active has it,
 * spins. */
#include <omp.h>

double imbalanced(double seconds)
{
	double end = omp_get_wtime() + seconds, sum = 0;
#pragma omp parallel num_threads(2) reduction(+ : sum)
	while (omp_get_thread_num() && omp_get_wtime() < end)
		for (int part = 0; part < 1000; part++)
			sum += 1.0 / (part + 1);
	return sum;
}
