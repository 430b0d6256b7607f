"""`kcover-ebpf trace`: what every thread of interest of a job does now, as a stream of records.

Collecting (`tracer`, `stack_helpers`) and showing (`render`, `markdown`) meet only in the records, so a run
may be made on another machine, or last week.
"""
