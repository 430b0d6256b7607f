"""An all-reduce over all pods of a job before it begins, by nccl-tests: runs in the image of the job.

For any Python from 3.8 on, with the standard library alone: it is copied into the pod. The first pod gathers the
others by MASTER_ADDR and starts Open MPI's mpirun; what mpirun starts on another pod goes over the connection that
this pod opened, in the place of ssh. What cannot be measured is unknown, and the job starts.
"""
