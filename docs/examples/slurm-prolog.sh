#!/bin/sh
# Prolog= of slurm.conf: a sensor beside each job of one node, without a change to its script. It runs as root.
PATH=/usr/local/bin:/usr/bin:/bin:$PATH
log=${KCOVER_LOGS:-/var/log}/kcover-$SLURM_JOB_ID.log
# All that Slurm waits for is this script, so that what continues keeps none of its files.
setsid sh -c '
	# The first step of the job: srun, not the batch script. Its parent process is there once it starts.
	until step=$(pgrep --oldest --full "^slurmstepd: \[$1\.[0-9]+\]"); do
		squeue --noheader --jobs "$1" 2>/dev/null | grep -q . || exit 0
		sleep 1
	done
	kcover-ebpf run --act shutdown --pid "$step"
	[ $? = 75 ] && scontrol requeue "$1"
' sh "$SLURM_JOB_ID" </dev/null >"$log" 2>&1 &
exit 0
