"""An all-reduce over all pods of a job before it begins, by nccl-tests; runs in the image of the job.

It is copied into the pod, so it supports any Python from 3.8 on and uses only the standard library.

The first pod (MASTER_ADDR) waits for the others to connect, and starts Open MPI's mpirun. Commands of mpirun for
another pod use the connection that this pod opened, instead of ssh. If the bandwidth cannot be measured it is
unknown, and the job starts.
"""
