"""Facts of one job over time, and the verdict they add up to. Pure: no clock, no file, no network."""
