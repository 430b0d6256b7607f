"""The nouns of the cluster side: pods, gangs, reports, orders. Pure: no clock, no file, no network."""
