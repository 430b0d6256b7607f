# The same as kcover_hint.py for shell scripts: `. kcover_hint.sh`, then
#
#   kcover_phase conversion 900 python3 convert.py     # may take up to 900 s; returns the command's exit status
#   kcover_checkpoint_complete 1200
#
# POSIX sh. Each prints one line to standard error.

kcover_phase() {
    kcover_name=$1
    echo "kcover: phase $1 up to $2 s" >&2
    shift 2
    "$@"
    kcover_status=$?
    echo "kcover: phase $kcover_name ends" >&2
    return "$kcover_status"
}

kcover_checkpoint_complete() {
    echo "kcover: checkpoint $1 is complete" >&2
}
