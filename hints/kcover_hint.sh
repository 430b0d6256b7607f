# The same as kcover_hint.py for shell scripts: `. kcover_hint.sh`, then
#
#   kcover_phase conversion 900 python3 convert.py     # may take up to 900 s; returns the command's exit status
#   kcover_checkpoint_complete 1200
#
# POSIX sh. Each prints one line to standard error.

# Names and statuses are arguments of functions: POSIX sh has no other local variables, and a phase may be within another.
kcover_phase() {
    echo "kcover: phase $1 up to $2 s" >&2
    kcover_run_phase "$@"
    set -- "$1" "$?"
    echo "kcover: phase $1 ends" >&2
    return "$2"
}

kcover_run_phase() {
    shift 2
    "$@"
}

kcover_checkpoint_complete() {
    echo "kcover: checkpoint $1 is complete" >&2
}
