"""The verdict on a gang, from the reports of its nodes. Pure: no clock, no file, no network."""
