"""`kcover-ebpf trace`: what every thread of interest of a job does now, as a stream of records.

Collecting (`tracer`, `stack_helpers`) and showing (`render`, `markdown`) share only the records, so a trace may
come from another machine or from a file.
"""
