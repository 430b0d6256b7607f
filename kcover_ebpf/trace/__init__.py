"""`kcover-ebpf trace`: what every thread of interest of a job does now, as a stream of records.

Looking (`collect`, `stacks`) and showing (`render`, `markdown`) meet only in the records, so a look
may be made on another machine, or last week.
"""
