#!/bin/bash
# A batch script whose job is ended as a whole by a fault of one rank, and queued again by Slurm.
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --requeue
#SBATCH --open-mode=append
# SLURM_RESTART_COUNT is Slurm's own count of what this script asks for.
most_restarts=3
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

srun --kill-on-bad-exit=0 kcover-ebpf run --act shutdown --join "$first" \
	--join-hosts "$SLURM_NNODES" --join-secret "$HOME/join.secret" -- ./train.sh
code=$?
# 75: the job was ended on a verdict; anything else is its own code.
if [ "$code" = 75 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt "$most_restarts" ]; then
	scontrol requeue "$SLURM_JOB_ID"
	sleep 60 # until Slurm ends this script
fi
exit "$code"
