#!/bin/sh
# A peer on each of a hundred cards:  POTLUCK_INVITE_FILE=$HOME/invite.txt sbatch docker/clusters/slurm.sh
#SBATCH --job-name=potluck
#SBATCH --array=0-99
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=4
#SBATCH --mem=32G
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
# A minute before the end of its time each peer says goodbye, and a run that goes on takes it in again.
#SBATCH --signal=TERM@60

# Each number of the array keeps its identity over requeues.
state="${SCRATCH:-$HOME}/potluck/$SLURM_ARRAY_TASK_ID"
mkdir -p "$state"
# srun, so that the signal reaches the peer and not only this shell. The invite goes by standard input, and not by `ps`.
srun potluck join - --over-is-fine --state-dir "$state" < "${POTLUCK_INVITE_FILE:?the file that holds the invite}"
