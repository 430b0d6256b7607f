"""The bytes of one kernel record, and the fact it decodes to. Pure: no clock, no file, no network."""
